#include "megatron/cli/bench/read_speed.h"

#include <atomic>
#include <chrono>

#include "megatron/base/seconds_since.h"

namespace megatron {
namespace {

constexpr int64_t kChunk = int64_t{1} << 16;

typedef uint64_t Lanes __attribute__((vector_size(32)));

// In vectors of their own, so that it is fast without an optimiser too.
uint64_t sum_of(const char* bytes) {
  Lanes sums[8] = {};
  for (int64_t at = 0; at < kChunk; at += static_cast<int64_t>(sizeof(sums)))
#pragma GCC unroll 8
    for (int64_t i = 0; i < 8; ++i) {
      Lanes lanes;
      __builtin_memcpy(&lanes, bytes + at + i * static_cast<int64_t>(sizeof(Lanes)), sizeof(Lanes));
      sums[i] += lanes;
    }
  Lanes all = {};
  for (const Lanes& lanes : sums) all += lanes;
  return all[0] + all[1] + all[2] + all[3];
}

}  // namespace

ReadSpeed::ReadSpeed(RankContext& ctx, double bytes) : pool_(ctx.pool) {
  if (ctx.device != kCpu) return;
  constexpr int64_t most = int64_t{1} << 29;
  chunks_ = std::max<int64_t>(1, static_cast<int64_t>(bytes) / kChunk);
  buffer_ = ctx.full({std::min(chunks_ * kChunk, most)}, DType::I8, 1, MemoryTag::Workspace);
}

double ReadSpeed::seconds() {
  std::atomic<uint64_t> total = 0;
  const int64_t held = buffer_.numel() / kChunk;
  const auto start = std::chrono::steady_clock::now();
  pool_.parallel_for(chunks_, 1, [&](int64_t begin, int64_t end) {
    uint64_t sum = 0;
    for (int64_t i = begin; i < end; ++i)
      sum += sum_of(static_cast<const char*>(buffer_.raw()) + i % held * kChunk);
    total += sum;
  });
  const double seconds = seconds_since(start);
  return total == 0 ? 0 : seconds;  // the sum is used, so that it is made
}

}  // namespace megatron
