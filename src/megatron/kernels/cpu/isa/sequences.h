#pragma once

#include <vector>

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

}  // namespace megatron::cpu::MEGATRON_ISA
