#include "megatron/kernels/limits/cross_entropy.h"

#include <algorithm>

#include "megatron/kernels/limits/alignment.h"

namespace megatron {

int64_t limits::logit_vector(const CrossEntropyGradArgs& args) {
  const auto width =
      static_cast<int64_t>(16 / std::max(size_of(args.logits.dtype()), size_of(args.dlogits.dtype())));
  return args.logits.size(1) % width == 0 && is_aligned(args.logits) && is_aligned(args.dlogits) ? width : 1;
}

std::optional<Refusal> refuse(const CrossEntropyGradArgs& args, const GpuFacts&) {
  if (args.logits.numel() == 0) return {};
  const int64_t columns = args.logits.size(1), max = limits::logits(limits::logit_vector(args));
  if (columns <= max) return {};
  return Refusal{LaunchLimit::Logits, columns,
                 fmt::format("the CUDA kernels take {} logits of a token on a rank, not {}", max, columns)};
}

}  // namespace megatron
