#pragma once

#include <string>
#include <string_view>

#include "megatron/comm/backend.h"
#include "megatron/comm/processes/transport.h"

namespace megatron {

enum class FrameKind : uint8_t { Data, Abort, Returned, Question, Answer, Goodbye, Heartbeat, Join, Members };

// What stands at the front of every frame; the payload follows, then a text for people.
struct FrameHead {
  FrameKind kind = FrameKind::Data;
  uint8_t phase = 0;
  int32_t from = 0, to = 0;  // world ranks; processes in frames between wires
  uint32_t generation = 0;
  uint64_t group = 0, sequence = 0;
  uint64_t signature = 0;  // of the call: equal on all ranks of an operation
  uint64_t payload = 0, text = 0;
};
inline constexpr size_t kHeadBytes = 64;
static_assert(sizeof(FrameHead) <= kHeadBytes);

Frame make_frame(FrameHead head, const void* payload, std::string_view text,
                 const std::shared_ptr<FramePool>& pool);
FrameHead head_of(const Frame& frame);
inline char* payload_of(const Frame& frame) { return frame.bytes.get() + kHeadBytes; }
std::string_view text_of(const Frame& frame);

uint64_t signature_of(const CommRequest& request);
uint64_t mix(uint64_t seed, uint64_t value);

// The numbers of a text, separated by one character each, up to what is none.
std::vector<int> numbers_in(std::string_view text);

}  // namespace megatron
