#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace megatron::report {

// What a rank does at once is shown on lanes below each other.
enum class TraceLane { compute, communication, pipeline, data };

// Something that took a while on a rank. Times are in microseconds of a clock that all ranks share.
struct TraceSpan {
  int64_t rank = 0;
  TraceLane lane = TraceLane::compute;
  std::string name;
  double begin = 0, end = 0;
};

// A message from one rank to another: from the begin of the span that sent it to the end of the one that
// waited for it.
struct TraceMessage {
  int64_t from = 0, to = 0;  // ranks
  std::string name;          // "activations"
  double sent = 0, received = 0;
};

// A value over time: memory, say.
struct TraceCounter {
  int64_t rank = 0;
  std::string name;
  double time = 0, value = 0;
};

struct Trace {
  std::vector<TraceSpan> spans;
  std::vector<TraceMessage> messages;
  std::vector<TraceCounter> counters;
};

// The trace as Chrome's JSON events, which Perfetto and chrome://tracing open: a process a rank, a thread a
// lane, an arrow a message. The earliest time becomes 0.
std::string chrome_trace(const Trace& trace);

// A message as one of its ends saw it.
struct TraceEnd {
  int64_t rank = 0, peer = 0;
  bool sends = false;
  std::string name;  // "activations": messages of other names are others
  double time = 0;
};

// Pairs of ends: between two ranks, messages of one name arrive in the order in which they were sent. An end
// without the other is left out.
std::vector<TraceMessage> match_messages(std::span<const TraceEnd> ends);

}  // namespace megatron::report
