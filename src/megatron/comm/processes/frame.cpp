#include "megatron/comm/processes/frame.h"

#include <charconv>
#include <cstring>

namespace megatron {

namespace {

constexpr size_t kLarge = 64 << 10;             // below this the heap is as good
constexpr size_t kMaxKept = size_t{256} << 20;  // bytes that wait for frames to come

}  // namespace

FramePool::~FramePool() {
  for (const Block& block : free_) delete[] block.bytes;
}

FramePool::Block FramePool::take(size_t bytes) {
  {
    std::lock_guard lock(mutex_);
    auto best = free_.end();
    for (auto block = free_.begin(); block != free_.end(); ++block)
      if (block->size >= bytes && block->size <= 2 * bytes &&
          (best == free_.end() || block->size < best->size))
        best = block;
    if (best != free_.end()) {
      const Block found = *best;
      free_.erase(best);
      kept_ -= found.size;
      return found;
    }
  }
  return {new char[bytes], bytes};
}

void FramePool::give(Block block) noexcept {
  std::lock_guard lock(mutex_);
  while (!free_.empty() && kept_ + block.size > kMaxKept) {  // the oldest go
    kept_ -= free_.front().size;
    delete[] free_.front().bytes;
    free_.erase(free_.begin());
  }
  if (block.size > kMaxKept) {
    delete[] block.bytes;
    return;
  }
  free_.push_back(block);
  kept_ += block.size;
}

Frame::Frame(size_t size, const std::shared_ptr<FramePool>& pool) : size(size) {
  const size_t wanted = blocks() * kBlock;
  if (wanted < kLarge) {
    bytes = {new char[wanted], ReturnFrame{}};
    return;
  }
  const FramePool::Block block = pool->take(wanted);
  bytes = {block.bytes, ReturnFrame{pool, block.size}};
}

void ReturnFrame::operator()(char* bytes) const noexcept {
  if (pool)
    pool->give({bytes, size});
  else
    delete[] bytes;
}

Frame make_frame(FrameHead head, const void* payload, std::string_view text,
                 const std::shared_ptr<FramePool>& pool) {
  head.text = text.size();
  Frame frame(kHeadBytes + head.payload + text.size(), pool);
  std::memset(frame.bytes.get(), 0, kHeadBytes);
  std::memcpy(frame.bytes.get(), &head, sizeof head);
  if (head.payload > 0) std::memcpy(payload_of(frame), payload, head.payload);
  if (!text.empty()) std::memcpy(payload_of(frame) + head.payload, text.data(), text.size());
  return frame;
}

FrameHead head_of(const Frame& frame) {
  FrameHead head;
  std::memcpy(&head, frame.bytes.get(), sizeof head);
  return head;
}

std::string_view text_of(const Frame& frame) {
  const FrameHead head = head_of(frame);
  return {payload_of(frame) + head.payload, head.text};
}

uint64_t mix(uint64_t seed, uint64_t value) {
  uint64_t x = seed ^ (value + 0x9e3779b97f4a7c15u + (seed << 6) + (seed >> 2));
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

uint64_t signature_of(const CommRequest& request) {
  const bool message = is_message(request.kind);
  const auto count = [](const Tensor& tensor) {
    return tensor.defined() ? static_cast<uint64_t>(tensor.numel()) : 0;
  };
  uint64_t signature = message ? 0 : 1 + static_cast<uint64_t>(request.kind);
  signature = mix(signature, static_cast<uint64_t>(request.op));
  if (!message) signature = mix(signature, static_cast<uint64_t>(request.peer + 1));
  for (const char c : request.name) signature = mix(signature, static_cast<uint64_t>(c));
  if (!request.tensor().defined()) return signature;
  signature = mix(signature, static_cast<uint64_t>(request.tensor().dtype()));
  if (message) return mix(signature, count(request.tensor()));
  return request.kind == CommKind::AllToAll ? signature : mix(signature, count(request.input));
}

std::vector<int> numbers_in(std::string_view text) {
  std::vector<int> numbers;
  for (const char *at = text.data(), *end = at + text.size(); at < end;) {
    int value = 0;
    const auto [next, problem] = std::from_chars(at, end, value);
    if (problem != std::errc()) break;
    numbers.push_back(value);
    at = next + 1;
  }
  return numbers;
}

}  // namespace megatron
