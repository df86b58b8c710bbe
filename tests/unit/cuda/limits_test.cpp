#include "megatron/kernels/limits/gpu.h"
#include "megatron/kernels/limits/grid.h"
#include "megatron/kernels/limits/launch_check.h"
#include "unit/cuda/twin.h"

// Kernels take what kernels/limits says, and refuse one more of it.
namespace megatron::testing {
namespace {

class CudaLimits : public Twin {
 protected:
  template <class Args>
  void refuses(Kernel<Args> KernelTable::*kernel, const Args& args, const char* what) {
    EXPECT_THROW((gpu().kernels->*kernel)(gpu().kernel_context(), args), Error) << what;
  }
};

TEST_F(CudaLimits, SumsOfMoreSlicesThanALaunchTakes) {
  const int64_t outer = limits::kGridRows + 4465, n = 3, inner = 2;
  Both x = uniform({outer, n, inner}, DType::F32), out = output({outer, inner}, DType::F32);
  run(&KernelTable::reduce,
      [&](auto on) { return ReduceArgs{Reduction::Sum, on(x), on(out), outer, n, inner}; });
  same(out, 1e-6, "sums");
}

TEST_F(CudaLimits, GroupedGemmsOfMoreTilesThanALaunchHasRows) {
  if (sanitized()) return;  // millions of rows
  const int64_t rows = limits::kTileRows + 5000;
  const std::vector<int32_t> bounds{0, 1000, static_cast<int32_t>(rows)};
  Both offsets = on_both(cpu.from_vector(bounds, {3})), a = uniform({rows, 1}, DType::F32);
  Both b = uniform({2, 1, 2}, DType::F32), c = output({rows, 2}, DType::F32);
  run(&KernelTable::grouped_gemm, [&](auto on) { return GroupedGemmArgs{on(a), on(b), on(c), on(offsets)}; });
  same(c, 1e-6, "grouped");
}

TEST_F(CudaLimits, NormsOfTheLongestRows) {
  for (DType dtype : floats())
    for (bool vectors : {true, false}) {
      const auto bytes = static_cast<int64_t>(size_of(dtype));
      const int64_t n = limits::norm_row(bytes, vectors) - (vectors ? 0 : 1);
      const DType wide = accumulation_dtype(dtype);
      const std::string what = std::string(name_of(dtype)) + " " + std::to_string(n);
      Both x = uniform({3, n}, dtype), weight = uniform({n}, dtype), y = output({3, n}, dtype);
      Both rstd = output({3}, wide);
      run(&KernelTable::norm, [&](auto on) {
        NormArgs args;
        args.x = on(x), args.weight = on(weight), args.y = on(y), args.rstd = on(rstd);
        return args;
      });
      same(y, tolerance_of(dtype), "norm " + what);

      const int64_t width = limits::gated_norm_row(bytes, vectors) - (vectors ? 0 : 1);
      Both gx = uniform({2, width}, dtype), gate = uniform({2, width}, dtype),
           gamma = uniform({width}, dtype);
      Both squares = output({2, 1}, wide), gy = output({2, width}, dtype);
      run(&KernelTable::gated_norm, [&](auto on) {
        return GatedNormArgs{true, 1e-5, 0, on(gx), on(gate), on(gamma), on(squares), on(gy)};
      });
      same(gy, tolerance_of(dtype), "gated norm " + what);
      // The gradient is the same on both sides: outputs rounded to 16 bits differ here and there by a whole
      // unit.
      Both dy = uniform({2, width}, dtype);
      Both dx = output({2, width}, dtype), dgate = output({2, width}, dtype), dgamma = output({width}, wide);
      run(&KernelTable::gated_norm_backward, [&](auto on) {
        return GatedNormBackwardArgs{true,        1e-5,   width,    on(gx), on(gate),  on(gamma),
                                     on(squares), on(dy), Tensor{}, on(dx), on(dgate), on(dgamma)};
      });
      same(dx, 3 * tolerance_of(dtype), "gated norm's gradient " + what);
      same(dgate, 3 * tolerance_of(dtype), "its gate's " + what);
      same(dgamma, dtype == DType::F64 ? 1e-10 : 1e-4, "its weight's " + what);
    }
  const int64_t n = limits::norm_row(4, true) + 4;
  Both x = uniform({1, n}, DType::F32), y = output({1, n}, DType::F32), rstd = output({1}, DType::F32);
  NormArgs args;
  args.x = x.gpu, args.y = y.gpu, args.rstd = rstd.gpu;
  refuses(&KernelTable::norm, args, "a longer row");
}

TEST_F(CudaLimits, TheLongestChunkOfAScan) {
  const int64_t tokens = sanitized() ? 70 : limits::kScanChunk + 100, channels = 5, states = 7,
                width = channels + 2 * states, chunk = limits::kScanChunk;
  for (DType dtype : some_of({DType::F64, DType::F32})) {
    Both xbc = uniform({tokens, width}, dtype), dt = uniform({tokens, 1}, dtype, -4, -2);
    Both a_log = uniform({1}, dtype), d = uniform({1}, dtype), bias = uniform({1}, dtype);
    Both y = output({tokens, channels}, dtype), dy = uniform({tokens, channels}, dtype);
    Both before = output({chunk_slots(tokens, 1, chunk), 1, channels, states}, dtype);
    auto args = [&](auto on, int64_t length) {
      SsdArgs a{.heads = 1, .channels = channels, .groups = 1, .states = states, .chunk = length};
      a.step_min = 1e-3, a.step_max = 1e9;
      a.xbc = on(xbc), a.dt = on(dt), a.a_log = on(a_log), a.d = on(d), a.dt_bias = on(bias);
      a.before = on(before), a.y = on(y);
      return a;
    };
    run(&KernelTable::ssd, [&](auto on) { return args(on, chunk); });
    const double within = dtype == DType::F64 ? 1e-11 : 2e-4;
    same(y, within, "y");
    Both dxbc = output({tokens, width}, dtype), ddt = output({tokens, 1}, dtype);
    Both da_log = output({1}, dtype), dd = output({1}, dtype), dbias = output({1}, dtype);
    run(&KernelTable::ssd_backward, [&](auto on) {
      SsdArgs forward = args(on, chunk);
      forward.y = {};
      return SsdBackwardArgs{forward, on(dy), on(dxbc), on(ddt), on(da_log), on(dd), on(dbias)};
    });
    same(dxbc, within, "dxbc");
    refuses(&KernelTable::ssd, args([](const Both& x) { return x.gpu; }, chunk + 1), "a longer chunk");
  }
}

TEST_F(CudaLimits, OneMoreIsRefused) {
  const int64_t slots = limits::kExpertSlots + 1;
  Both experts = integers({8, 1}, 0, slots), rows = integers({8}, 0, 1), copies = integers({8}, 0, 1);
  Both offsets = integers({slots + 1}, 0, 1, DType::I32);
  refuses(&KernelTable::expert_sort, {experts.gpu, offsets.gpu, rows.gpu, copies.gpu}, "more experts");

  const int64_t keys = limits::kDeltaKeyChannels + 1;
  Both qkv = uniform({2, 2 * keys + 4}, DType::F32), gates = uniform({2, 1}, DType::F32);
  Both per_head = uniform({1}, DType::F32), o = output({2, 4}, DType::F32);
  DeltaRuleArgs delta{.key_channels = keys, .value_channels = 4};
  delta.qkv = qkv.gpu, delta.b = gates.gpu, delta.a = gates.gpu, delta.a_log = per_head.gpu;
  delta.dt_bias = per_head.gpu, delta.o = o.gpu;
  refuses(&KernelTable::delta_rule, delta, "wider keys");

  const int64_t head_dim = limits::kMaxHeadDim + 1;
  Both q = uniform({2, 1, head_dim}, DType::F32), lse = output({1, 2}, DType::F32);
  AttentionArgs attention;
  attention.q = attention.k = attention.v = attention.o = q.gpu, attention.lse = lse.gpu;
  refuses(&KernelTable::attention, attention, "wider heads");

  Both x = uniform({2, 3}, DType::F32), weight = uniform({3, limits::kConvolutionWidth + 1}, DType::F32);
  refuses(&KernelTable::causal_conv, {{1, {}}, x.gpu, weight.gpu, {}, x.gpu}, "a wider convolution");
}

}  // namespace
}  // namespace megatron::testing
