#pragma once

#include <span>
#include <vector>

#include "megatron/device/kernel_context.h"
#include "megatron/kernels/recurrent.h"

namespace megatron::cpu::MEGATRON_ISA {

// The tokens [begin, end) of one sequence.
struct TokenSpan {
  int64_t begin, end;
};

inline std::vector<TokenSpan> token_spans(const SequenceRows& rows, int64_t tokens) {
  std::vector<TokenSpan> spans;
  const auto* cu = rows.cu.defined() ? static_cast<const int32_t*>(rows.cu.raw()) : nullptr;
  int64_t length = rows.count > 0 ? tokens / rows.count : 0;
  for (int64_t i = 0; i < rows.count; ++i)
    spans.push_back(cu ? TokenSpan{cu[i], cu[i + 1]} : TokenSpan{i * length, (i + 1) * length});
  return spans;
}

// Calls scan(sequence, span, first_slot, group) for every sequence and every group of heads, on all threads.
// States are kept before every chunk; a sequence's first one is in first_slot.
template <class Scan>
void for_each_scan(const KernelContext& ctx, std::span<const TokenSpan> spans, int64_t groups, int64_t chunk,
                   const Scan& scan) {
  ctx.pool.parallel_for(static_cast<int64_t>(spans.size()) * groups, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t sequence = task / groups;
      const TokenSpan& span = spans[static_cast<size_t>(sequence)];
      scan(sequence, span, span.begin / chunk + sequence, task % groups);
    }
  });
}

// sums [sequences, targets, heads], over the sequences in their order.
template <class C, size_t N>
void sum_sequences(std::span<const C> sums, int64_t heads, C* const (&targets)[N]) {
  const int64_t stride = static_cast<int64_t>(N) * heads, end = static_cast<int64_t>(sums.size());
  for (int64_t k = 0; k < static_cast<int64_t>(N); ++k)
    for (int64_t h = 0; h < heads; ++h) {
      C total = 0;
      for (int64_t at = k * heads + h; at < end; at += stride) total += sums[static_cast<size_t>(at)];
      targets[k][h] = total;
    }
}

}  // namespace megatron::cpu::MEGATRON_ISA
