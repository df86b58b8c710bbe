#include <limits>

#include "unit/cuda/twin.h"

namespace megatron::testing {
namespace {

class CudaRows : public Twin {};

TEST_F(CudaRows, Reduce) {
  struct Case {
    int64_t outer, n, inner;
  };
  for (DType dtype : floats())
    for (DType out_dtype : {dtype, accumulation_dtype(dtype)})
      for (Case c : {Case{1, 1, 1},
                     {7, 100, 1},
                     {1, 50000, 1},
                     {3, 9000, 1},
                     {1, 1000, 96},
                     {1, 5000, 33},
                     {1, 3000, 1024},
                     {5, 70, 64}})
        for (int kind = 0; kind <= static_cast<int>(Reduction::Min); kind += sanitized() ? 2 : 1)
          for (bool accumulate : {false, true}) {
            Both x = uniform({c.outer, c.n, c.inner}, dtype),
                 out = uniform({c.outer, c.inner}, out_dtype, 0, 1);
            run(&KernelTable::reduce, [&](auto on) {
              return ReduceArgs{
                  static_cast<Reduction>(kind), on(x), on(out), c.outer, c.n, c.inner, accumulate};
            });
            // Sums of n terms of either sign: the error grows with their number, not with the result.
            double tolerance = tolerance_of(out_dtype);
            if (kind == 0) tolerance *= 10;
            same(out, tolerance, "reduce " + label(dtype) + " n=" + std::to_string(c.n));
          }
}

TEST_F(CudaRows, Softmax) {
  for (DType dtype : floats())
    for (int64_t n : {1, 17, 64, 1000, 5000}) {
      Both x = uniform({6, n}, dtype, -8, 8), y = output({6, n}, dtype), dx = output({6, n}, dtype);
      Both dy = uniform({6, n}, dtype);
      run(&KernelTable::fill, [&](auto on) {
        return FillArgs{on(x).slice(0, 2, 3), -std::numeric_limits<double>::infinity()};
      });
      run(&KernelTable::softmax, [&](auto on) { return SoftmaxArgs{on(x), on(y)}; });
      same(y, "softmax " + label(dtype));
      run(&KernelTable::softmax_backward, [&](auto on) {
        return SoftmaxBackwardArgs{on(y), on(dy), on(dx)};
      });
      same(dx, "softmax_backward " + label(dtype));
    }
}

TEST_F(CudaRows, NormAndItsGradient) {
  for (DType dtype : floats())
    for (NormKind kind : {NormKind::Rms, NormKind::Layer})
      for (int64_t n : {64, 100, 128, 768, 1021, 2048, 4096, 6144})
        for (int variant = 0; variant < 4; ++variant) {
          bool with_residual = variant & 1, with_weight = variant != 2, layer = kind == NormKind::Layer;
          int64_t rows = n == 64 ? 700 : n == 128 && !sanitized() ? 14000 : n == 128 ? 70 : 21;
          DType stats = accumulation_dtype(dtype);
          Both x = uniform({rows, n}, dtype), residual = with_residual ? uniform({rows, n}, dtype) : Both{};
          Both weight = with_weight ? uniform({n}, dtype) : Both{};
          Both bias = layer && with_weight ? uniform({n}, dtype) : Both{};
          Both y = output({rows, n}, dtype), sum = with_residual ? output({rows, n}, dtype) : Both{};
          Both mean = layer ? output({rows}, stats) : Both{}, rstd = output({rows}, stats);
          run(&KernelTable::norm, [&](auto on) {
            return NormArgs{kind,     1e-5,  variant == 3, on(x),    on(residual), on(weight),
                            on(bias), on(y), on(sum),      on(mean), on(rstd)};
          });
          std::string what = label(dtype) + " n=" + std::to_string(n) + " variant " + std::to_string(variant);
          same(y, "norm " + what);
          same(rstd, tolerance_of(stats), "rstd " + what);
          if (layer) same(mean, tolerance_of(stats), "mean " + what);
          if (with_residual) same(sum, "sum " + what);

          Both dy = uniform({rows, n}, dtype), dsum = with_residual ? uniform({rows, n}, dtype) : Both{};
          Both dx = output({rows, n}, dtype), dweight = with_weight ? uniform({n}, stats) : Both{};
          Both dbias = bias.cpu ? uniform({n}, stats) : Both{};
          const Both& input = with_residual ? sum : x;
          run(&KernelTable::norm_backward, [&](auto on) {
            return NormBackwardArgs{kind,     variant == 3, on(dy), on(dsum),    on(input), on(weight),
                                    on(mean), on(rstd),     on(dx), on(dweight), on(dbias), variant == 1};
          });
          same(dx, "dx " + what);
          // Inputs of few bits, sums of many: compared as sums.
          double tolerance = dtype == DType::F64 ? 1e-11 : dtype == DType::F32 ? 1e-4 : 1e-3;
          if (dweight.cpu) same(dweight, tolerance, "dweight " + what);
          if (dbias.cpu) same(dbias, tolerance, "dbias " + what);
        }
}

TEST_F(CudaRows, NormOfStridedRows) {
  for (DType dtype : {DType::F64, DType::BF16}) {
    Both x = uniform({9, 6, 128}, dtype), y = output({9, 2, 128}, dtype), weight = uniform({128}, dtype);
    Both rstd = output({18}, accumulation_dtype(dtype));
    run(&KernelTable::norm, [&](auto on) {
      return NormArgs{.x = on(x).slice(1, 3, 5),
                      .residual = {},
                      .weight = on(weight),
                      .bias = {},
                      .y = on(y),
                      .sum = {},
                      .mean = {},
                      .rstd = on(rstd)};
    });
    same(y, "norm of heads " + label(dtype));
  }
}

TEST_F(CudaRows, RopeTable) {
  for (DType dtype : {DType::F64, DType::F32})
    for (bool three : {false, true}) {
      Both positions = integers(three ? Shape{3, 50} : Shape{50}, 0, 100000);
      Both frequencies = uniform({32}, dtype, 0, 1), cos = output({50, 32}, dtype),
           sin = output({50, 32}, dtype);
      run(&KernelTable::rope_table, [&](auto on) {
        return RopeTableArgs{on(positions), on(frequencies), on(cos), on(sin), 1.25, {12, 10, 10}};
      });
      same(cos, dtype == DType::F64 ? 1e-10 : 1e-6, "cos " + label(dtype));
      same(sin, dtype == DType::F64 ? 1e-10 : 1e-6, "sin " + label(dtype));
    }
}

TEST_F(CudaRows, Rope) {
  for (DType dtype : floats())
    for (int64_t half : {32, 16, 5})
      for (bool interleaved : {false, true})
        for (bool inverse : {false, true}) {
          Both x = uniform({13, 6, 64}, dtype), y = output({13, 3, 64}, dtype);
          Both cos = uniform({13, half}, accumulation_dtype(dtype)),
               sin = uniform({13, half}, accumulation_dtype(dtype));
          run(&KernelTable::rope, [&](auto on) {
            return RopeArgs{on(x).slice(1, 2, 5), on(y), on(cos), on(sin), interleaved, inverse};
          });
          same(y, "rope " + label(dtype) + " half " + std::to_string(half));
          run(&KernelTable::rope,
              [&](auto on) { return RopeArgs{on(x), on(x), on(cos), on(sin), interleaved, inverse}; });
          same(x, "rope in place " + label(dtype));
          Both groups = uniform({13, 4, 3, 64}, dtype);
          run(&KernelTable::rope, [&](auto on) {
            Tensor turning = on(groups).slice(2, 0, 2);
            return RopeArgs{turning, turning, on(cos), on(sin), interleaved, inverse};
          });
          same(groups, "rope of groups " + label(dtype));
        }
}

TEST_F(CudaRows, QkvSplitAndMerge) {
  for (DType dtype : floats())
    for (int64_t half : {0, 32, 16, 3})
      for (bool interleaved : {false, true}) {
        constexpr int64_t tokens = 11, groups = 3, per_group = 2, channels = 64;
        DType wide = accumulation_dtype(dtype);
        Both qkv = uniform({tokens, groups * (per_group + 2) * channels}, dtype);
        Both q = output({tokens, groups * per_group, channels}, dtype),
             k = output({tokens, groups, channels}, dtype);
        Both v = output({tokens, groups, channels}, dtype), back = output(qkv.cpu.shape(), dtype);
        Both cos = half ? uniform({tokens, half}, wide) : Both{},
             sin = half ? uniform({tokens, half}, wide) : Both{};
        run(&KernelTable::qkv_split, [&](auto on) {
          return QkvSplitArgs{on(qkv), on(q), on(k), on(v), on(cos), on(sin), interleaved, false};
        });
        std::string what = label(dtype) + " half " + std::to_string(half);
        same(q, "q " + what);
        same(k, "k " + what);
        same(v, 0, "v " + what);
        run(&KernelTable::qkv_split, [&](auto on) {
          return QkvSplitArgs{on(back), on(q), on(k), on(v), on(cos), on(sin), interleaved, true};
        });
        same(back, "merge " + what);
      }
}

TEST_F(CudaRows, CrossEntropy) {
  for (DType dtype : floats())
    for (int64_t columns : {64, 1000, 50304 / 16 + 3})
      for (double smoothing : {0.0, 0.1}) {
        constexpr int64_t rows = 12;
        int64_t valid = columns - 5;
        DType wide = accumulation_dtype(dtype);
        Both logits = uniform({rows, columns}, dtype, -6, 6), labels = integers({rows}, 0, 2 * columns);
        labels.cpu.data<int64_t>()[3] = -100;
        labels = on_both(labels.cpu);
        Both maximum = output({rows}, wide), sum_exp = output({rows}, wide), target = output({rows}, wide);
        Both sum_logits = smoothing > 0 ? output({rows}, wide) : Both{};
        run(&KernelTable::cross_entropy_stats, [&](auto on) {
          return CrossEntropyStatsArgs{on(logits),  on(labels),  columns / 2, valid,
                                       on(maximum), on(sum_exp), on(target),  on(sum_logits)};
        });
        std::string what = label(dtype) + " columns " + std::to_string(columns);
        same(maximum, 0, "maximum " + what);
        same(sum_exp, tolerance_of(wide), "sum_exp " + what);
        same(target, 0, "target " + what);
        if (smoothing > 0) same(sum_logits, 10 * tolerance_of(wide), "sum_logits " + what);
        Both lse = output({rows}, wide), loss = output({rows}, wide), scale = uniform({rows}, wide);
        run(&KernelTable::cross_entropy_loss, [&](auto on) {
          return CrossEntropyLossArgs{on(maximum), on(sum_exp), on(target), on(sum_logits), on(labels), -100,
                                      valid,       smoothing,   1e-3,       on(lse),        on(loss)};
        });
        same(loss, tolerance_of(wide), "loss " + what);
        for (DType grad_dtype : {dtype, wide}) {
          Both dlogits = output({rows, columns}, grad_dtype);
          run(&KernelTable::cross_entropy_grad, [&](auto on) {
            return CrossEntropyGradArgs{on(logits), on(labels), on(lse),   on(scale), columns / 2, valid,
                                        -100,       valid,      smoothing, 1e-3,      on(dlogits)};
          });
          same(dlogits, "dlogits " + what);
        }
      }
}

// NaN must not be lost, though a thread sees it beside −∞ alone: at each place of a row, by
// vectors and one by one.
TEST_F(CudaRows, CrossEntropyShowsNan) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  for (DType dtype : floats())
    for (int64_t columns : {64, 1003, 16384}) {
      constexpr int64_t rows = 8;
      const int64_t at[rows] = {0, 1, 7, columns / 2, columns - 9, columns - 2, columns - 1, -1};
      std::vector<double> x(static_cast<size_t>(rows * columns), -infinity);
      for (int64_t row = 0; row < rows; ++row) {
        x[static_cast<size_t>(row * columns + columns / 3)] = 2;
        if (at[row] >= 0) x[static_cast<size_t>(row * columns + at[row])] = std::nan("");
      }
      const DType wide = accumulation_dtype(dtype);
      Both logits = cast(x, {rows, columns}, dtype), labels = integers({rows}, 0, columns);
      Both maximum = output({rows}, wide), sum_exp = output({rows}, wide), target = output({rows}, wide),
           loss = output({rows}, wide);
      const std::string what = label(dtype) + " columns " + std::to_string(columns);
      auto shown = [&](const Both& result) {
        for (const auto& got : {values(cpu, result.cpu), values(gpu(), result.gpu)})
          for (int64_t row = 0; row < rows; ++row)
            EXPECT_EQ(std::isnan(got[static_cast<size_t>(row)]), at[row] >= 0) << what << " row " << row;
      };
      run(&KernelTable::cross_entropy_stats, [&](auto on) {
        return CrossEntropyStatsArgs{on(logits),  on(labels),  0,          columns,
                                     on(maximum), on(sum_exp), on(target), {}};
      });
      shown(sum_exp);
      run(&KernelTable::cross_entropy, [&](auto on) {
        return CrossEntropyArgs{.logits = on(logits),
                                .labels = on(labels),
                                .valid = columns,
                                .vocab_size = columns,
                                .loss = on(loss)};
      });
      shown(loss);
    }
}

// Rows for one block and for clusters of two, four and eight, too long for any, and that do not lie well.
TEST_F(CudaRows, CrossEntropyInOne) {
  for (DType dtype : floats())
    for (int64_t columns : {64, 1000, 1003, 50304, 131072, 151936, 262208})
      for (double smoothing : {0.0, 0.1})
        for (bool gradient : {true, false}) {
          const int64_t rows = sanitized() ? 4 : 9;
          int64_t valid = columns - 5;
          DType wide = accumulation_dtype(dtype);
          Both logits = uniform({rows, columns}, dtype, -6, 6), labels = integers({rows}, 0, valid);
          labels.cpu.data<int64_t>()[3] = -100;
          labels = on_both(labels.cpu);
          Both loss = output({rows}, wide), scale = uniform({rows}, wide, 0.5, 0.9);
          run(&KernelTable::cross_entropy, [&](auto on) {
            return CrossEntropyArgs{
                .logits = on(logits),
                .labels = on(labels),
                .scale = smoothing > 0 ? on(scale).slice(0, 0, 1).expand({rows}) : on(scale),
                .valid = valid,
                .vocab_size = valid,
                .smoothing = smoothing,
                .z_loss = 1e-3,
                .loss = on(loss),
                .dlogits = gradient ? on(logits) : Tensor{}};
          });
          std::string what = label(dtype) + " columns " + std::to_string(columns);
          same(loss, 10 * tolerance_of(wide), "loss " + what);
          if (gradient) same(logits, "gradient " + what);
        }
}

}  // namespace
}  // namespace megatron::testing
