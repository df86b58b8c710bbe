#include <cmath>
#include <limits>

#include "megatron/kernels/cpu/isa/dispatch.h"

namespace megatron::cpu::MEGATRON_ISA {

void attention_merge(const KernelContext& ctx, const AttentionMergeArgs& args) {
  int64_t tokens = args.o.size(0), heads = args.o.size(1), dv = args.o.size(2);
  dispatch_float("attention_merge", args.part_o.dtype(), [&]<class T>(Type<T>) {
    using C = Compute<T>;
    const Tensor& part = args.part_o;
    ctx.pool.parallel_for(
        tokens, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, heads * dv)),
        [&](int64_t begin, int64_t end) {
          for (int64_t token = begin; token < end; ++token)
            for (int64_t head = 0; head < heads; ++head) {
              C& lse = pointer<C>(args.lse)[head * args.lse.stride(0) + token];
              C other = pointer<C>(args.part_lse)[head * args.part_lse.stride(0) + token];
              if (other == -std::numeric_limits<C>::infinity()) continue;  // it saw nothing
              C largest = std::max(lse, other);
              C joined = largest + std::log(std::exp(lse - largest) + std::exp(other - largest));
              C held = std::exp(lse - joined), added = std::exp(other - joined);
              C* o = pointer<C>(args.o) + (token * heads + head) * dv;
              const T* x = pointer<T>(part) + token * part.stride(0) + head * part.stride(1);
              for (int64_t c = 0; c < dv; ++c) o[c] = held * o[c] + added * C(x[c]);
              lse = joined;
            }
        });
  });
}

}  // namespace megatron::cpu::MEGATRON_ISA
