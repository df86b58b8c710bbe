#include <limits>

#include "unit/cuda/twin.h"

namespace megatron::testing {
namespace {

class CudaIndex : public Twin {};
constexpr DType kFloats[] = {DType::F64, DType::F32, DType::BF16, DType::F16};

TEST_F(CudaIndex, GatherRows) {
  for (DType dtype : {DType::F64, DType::F32, DType::BF16, DType::U8})
    for (int64_t columns : {64, 33}) {
      Both table = uniform({50, columns}, dtype, 0, 90), ids = integers({77}, 0, 100);
      Both out = output({77, columns}, dtype);
      run(&KernelTable::gather_rows, [&](auto on) {
        return GatherRowsArgs{on(table), on(ids), on(out), 25};
      });
      same(out, 0, "gather " + label(dtype));
    }
}

TEST_F(CudaIndex, ScatterAddRowsInOrder) {
  for (DType dtype : kFloats)
    for (DType out_dtype : {dtype, accumulation_dtype(dtype)})
      for (int64_t columns : {64, 33, 1000})
        for (bool accumulate : {false, true}) {
          Both source = uniform({500, columns}, dtype), ids = integers({500}, 0, 60);
          Both out = uniform({40, columns}, out_dtype);
          run(&KernelTable::scatter_add_rows, [&](auto on) {
            return ScatterAddRowsArgs{on(source), on(ids), on(out), 10, accumulate};
          });
          // In the same order, and so exactly equal, where no rounding to a narrower dtype lies in between.
          bool exact = out_dtype == accumulation_dtype(dtype);
          same(out, exact ? 0 : 3 * tolerance_of(out_dtype), "scatter " + label(dtype));
        }
}

// Few rows with many ids each are added as a tree.
TEST_F(CudaIndex, ScatterAddFewRows) {
  for (DType dtype : kFloats)
    for (int64_t rows : {1, 3})
      for (int64_t columns : {1, 8, 33, 128}) {
        const DType wide = accumulation_dtype(dtype);
        Both source = uniform({3000, columns}, dtype), ids = integers({3000}, 5, 6 + rows);
        Both out = uniform({rows, columns}, wide);
        run(&KernelTable::scatter_add_rows, [&](auto on) {
          return ScatterAddRowsArgs{on(source), on(ids), on(out), 5, rows == 3};
        });
        same(out, 10 * tolerance_of(wide), "scatter " + label(dtype));
      }
}

TEST_F(CudaIndex, GatherAndScatterColumns) {
  for (DType dtype : kFloats) {
    Both x = uniform({29, 40}, dtype), indices = integers({29, 6}, 0, 40), out = output({29, 6}, dtype);
    run(&KernelTable::gather_columns, [&](auto on) {
      return GatherColumnsArgs{on(x), on(indices), on(out)};
    });
    same(out, 0, "gather " + label(dtype));
    Both back = output({29, 40}, dtype);
    run(&KernelTable::scatter_columns, [&](auto on) {
      return ScatterColumnsArgs{on(out), on(indices), on(back)};
    });
    same(back, 0, "scatter " + label(dtype));
  }
}

TEST_F(CudaIndex, TopK) {
  for (DType dtype : kFloats)
    for (int64_t n : {8, 64, 129, 3000})
      for (int64_t k : {1, 4, 8}) {
        // Few different values, so that many are equal.
        Both x = integers({23, n}, -4, 4, dtype), values = output({23, k}, dtype);
        Both indices = output({23, k}, DType::I64);
        run(&KernelTable::top_k, [&](auto on) { return TopKArgs{on(x), on(values), on(indices)}; });
        same(values, 0, "values");
        same(indices, 0, "indices");
      }
}

TEST_F(CudaIndex, ExpertSortAndPermutation) {
  for (int64_t tokens : {1, 37, 1500})
    for (int64_t alignment : {1, 16}) {
      constexpr int64_t k = 3, count = 9;
      int64_t capacity = tokens * k + count * (alignment - 1);
      Both experts = integers({tokens, k}, -1, count), offsets = output({count + 1}, DType::I32);
      Both row_of_copy = output({tokens * k}, DType::I64), copy_of_row = output({capacity}, DType::I64);
      run(&KernelTable::expert_sort, [&](auto on) {
        return ExpertSortArgs{on(experts), on(offsets), on(row_of_copy), on(copy_of_row), alignment};
      });
      same(offsets, 0, "offsets");
      same(row_of_copy, 0, "row_of_copy");
      same(copy_of_row, 0, "copy_of_row");
      for (DType dtype : kFloats)
        for (int64_t columns : {64, 21}) {
          Both source = uniform({tokens, columns}, dtype), rows = output({capacity, columns}, dtype);
          run(&KernelTable::permute, [&](auto on) {
            return PermuteArgs{on(source), on(copy_of_row), on(rows), k};
          });
          same(rows, 0, "permute " + label(dtype));
          DType wide = accumulation_dtype(dtype);
          for (bool weighted : {false, true}) {
            Both weights = weighted ? uniform({tokens, k}, wide) : Both{},
                 out = output({tokens, columns}, dtype);
            run(&KernelTable::unpermute, [&](auto on) {
              return UnpermuteArgs{on(rows), on(row_of_copy), on(weights), on(out), k};
            });
            same(out, "unpermute " + label(dtype));
            Both grad = uniform({tokens, columns}, dtype), dsource = output({capacity, columns}, dtype);
            Both dweights = weighted ? output({tokens, k}, wide) : Both{};
            run(&KernelTable::unpermute_backward, [&](auto on) {
              return UnpermuteBackwardArgs{on(grad),    on(rows),    on(row_of_copy), on(copy_of_row),
                                           on(weights), on(dsource), on(dweights),    k};
            });
            same(dsource, "dsource " + label(dtype));
            if (weighted) same(dweights, 10 * tolerance_of(wide), "dweights " + label(dtype));
          }
        }
    }
}

TEST_F(CudaIndex, QuantizeAndBack) {
  struct Case {
    int64_t rows, columns, block_rows, block_columns;
  };
  for (DType dtype : {DType::F32, DType::BF16, DType::F16})
    for (DType fp8 : {DType::F8E4M3, DType::F8E5M2})
      for (Case c : {Case{64, 256, 0, 0},
                     {600, 512, 0, 0},
                     {64, 256, 1, 128},
                     {256, 256, 128, 128},
                     {50, 100, 16, 32}}) {
        int64_t down = c.block_rows ? (c.rows + c.block_rows - 1) / c.block_rows : 1;
        int64_t across = c.block_columns ? (c.columns + c.block_columns - 1) / c.block_columns : 1;
        Both x = uniform({c.rows, c.columns}, dtype, -7, 7), q = output({c.rows, c.columns}, fp8);
        Both turned = output({c.columns, c.rows}, fp8);
        Both scale = output({down, across}, DType::F32), back = output({c.rows, c.columns}, dtype);
        run(&KernelTable::fill, [&](auto on) { return FillArgs{on(x).slice(0, 0, 1), 0}; });
        run(&KernelTable::quantize, [&](auto on) {
          return QuantizeArgs{on(x), on(q), on(scale), c.block_rows, c.block_columns, on(turned)};
        });
        auto there = values(gpu(), q.gpu), across_there = values(gpu(), turned.gpu);
        for (int64_t i = 0; i < c.rows * c.columns; ++i)
          ASSERT_EQ(across_there[static_cast<size_t>(i % c.columns * c.rows + i / c.columns)],
                    there[static_cast<size_t>(i)])
              << "transposed, element " << i;
        same(scale, 1e-7, "scale");
        // A value on the edge between two steps may fall either way: one step of fp8.
        same(q, fp8 == DType::F8E4M3 ? 0.13 : 0.26, "q");
        run(&KernelTable::dequantize, [&](auto on) {
          return DequantizeArgs{on(q), on(scale), on(back), c.block_rows, c.block_columns};
        });
        same(back, fp8 == DType::F8E4M3 ? 0.13 : 0.26, "dequantized");
      }
}

// A scale from earlier steps, and the magnitude that is met for later ones.
TEST_F(CudaIndex, QuantizeByAGivenScale) {
  for (DType dtype : {DType::F64, DType::F32, DType::BF16})
    for (DType fp8 : {DType::F8E4M3, DType::F8E5M2})
      for (int64_t columns : {512, 100})  // in one pass, and element by element
        for (bool given : {true, false})
          for (double met : {0.0, 9.0}) {
            const int64_t rows = 300;
            Both x = uniform({rows, columns}, dtype, -7, 7), q = output({rows, columns}, fp8);
            Both turned = output({columns, rows}, fp8), inverse = output({1, 1}, DType::F32);
            Both scale = given ? cast({100}, {1, 1}, DType::F32) : Both{},
                 amax = cast({met}, {1, 1}, DType::F32);
            run(&KernelTable::quantize, [&](auto on) {
              return QuantizeArgs{on(x), on(q), on(inverse), 0, 0, on(turned), on(scale), on(amax)};
            });
            same(inverse, 1e-7, "inverse scale");
            same(amax, 0, "largest magnitude");
            same(q, fp8 == DType::F8E4M3 ? 0.13 : 0.26, "q");
            same(turned, fp8 == DType::F8E4M3 ? 0.13 : 0.26, "transposed");
          }
}

// Powers of two leave no last bit to differ in: the same bits as the CPU's.
TEST_F(CudaIndex, QuantizeBlocks) {
  for (DType dtype : {DType::F32, DType::BF16, DType::F16})
    for (DType fp8 : {DType::F8E4M3, DType::F8E5M2})
      for (auto [rows, columns] : {std::pair<int64_t, int64_t>{256, 384}, {272, 144}, {16, 80}, {7, 5}})
        for (int64_t block_rows : {1, 128}) {
          auto scales = [&](int64_t down, int64_t across) {
            return output({(down + block_rows - 1) / block_rows, (across + 127) / 128}, DType::F32);
          };
          Both x = uniform({rows, columns}, dtype, -7, 7), q = output({rows, columns}, fp8);
          Both turned = output({columns, rows}, fp8), scale = scales(rows, columns);
          Both transposed_scale = scales(columns, rows);
          run(&KernelTable::fill, [&](auto on) { return FillArgs{on(x).slice(0, 0, 1), 0}; });
          run(&KernelTable::fill, [&](auto on) { return FillArgs{on(x).slice(1, 1, 2), 1e-3}; });
          for (int64_t top = 128; top < rows; top += 128)  // a magnitude of its own for every block
            for (int64_t left = 0; left < columns; left += 128)
              run(&KernelTable::fill, [&](auto on) {
                Tensor part = on(x).slice(0, top, std::min(rows, top + 128));
                return FillArgs{part.slice(1, left, std::min(columns, left + 64)),
                                std::exp2(static_cast<double>(top / 64 + left / 128))};
              });
          run(&KernelTable::quantize_blocks, [&](auto on) {
            return QuantizeBlocksArgs{on(x), on(q), on(scale), on(turned), on(transposed_scale), block_rows};
          });
          const std::string what = label(dtype) + " " + label(fp8) + " by " + std::to_string(block_rows);
          same(scale, 0, "scale, " + what);
          same(transposed_scale, 0, "transposed scale, " + what);
          same(q, 0, "q, " + what);
          same(turned, 0, "transposed, " + what);
        }
}

TEST_F(CudaIndex, QuantizeBlocksOfWhatIsNotFinite) {
  for (double bad : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()})
    for (int64_t block_rows : {1, 128}) {
      std::vector<double> numbers(256 * 256, 3);
      numbers[300] = bad;
      Both x = cast(numbers, {256, 256}, DType::BF16), q = output({256, 256}, DType::F8E4M3);
      Both turned = output({256, 256}, DType::F8E4M3), back = output({256, 256}, DType::F32);
      Both scale = output({256 / block_rows, 2}, DType::F32),
           other = output({256 / block_rows, 2}, DType::F32);
      run(&KernelTable::quantize_blocks, [&](auto on) {
        return QuantizeBlocksArgs{on(x), on(q), on(scale), on(turned), on(other), block_rows};
      });
      run(&KernelTable::dequantize, [&](auto on) {
        return DequantizeArgs{on(q), on(scale), on(back), block_rows, 128};
      });
      same(back, 0, "back");
    }
}

TEST_F(CudaIndex, Adam) {
  struct Case {
    DType parameter, master, gradient, state;
    bool has_master;
  };
  for (Case c : {Case{DType::F64, DType::F64, DType::F64, DType::F64, false},
                 {DType::F32, DType::F32, DType::F32, DType::F32, false},
                 {DType::BF16, DType::F32, DType::F32, DType::F32, true},
                 {DType::BF16, DType::F32, DType::BF16, DType::F32, true},
                 {DType::F16, DType::F32, DType::F32, DType::F32, true},
                 {DType::BF16, DType::F32, DType::F32, DType::BF16, true},
                 {DType::BF16, DType::F32, DType::BF16, DType::BF16, false}})
    for (bool decoupled : {false, true}) {
      std::vector<Both> parameters, masters, gradients, firsts, seconds;
      for (int64_t n : {1, 1000, 40003, 5}) {
        parameters.push_back(uniform({n}, c.parameter));
        masters.push_back(c.has_master ? uniform({n}, c.master) : Both{});
        gradients.push_back(uniform({n}, c.gradient));
        firsts.push_back(uniform({n}, c.state));
        seconds.push_back(uniform({n}, c.state, 0.01, 1));
      }
      Both clip = uniform({1}, DType::F32, 0.3, 0.9);
      std::vector<AdamTensor> list[2];
      for (size_t i = 0; i < parameters.size(); ++i) {
        list[0].push_back(
            {parameters[i].cpu, masters[i].cpu, gradients[i].cpu, firsts[i].cpu, seconds[i].cpu, 0.1, 0.5});
        list[1].push_back(
            {parameters[i].gpu, masters[i].gpu, gradients[i].gpu, firsts[i].gpu, seconds[i].gpu, 0.1, 0.5});
      }
      int which = 0;
      run(&KernelTable::adam, [&](auto on) {
        return AdamArgs{.tensors = list[which++],
                        .lr = 1e-2,
                        .beta1 = 0.9,
                        .beta2 = 0.95,
                        .epsilon = 1e-8,
                        .step = 3,
                        .decoupled = decoupled,
                        .gradient_scale = on(clip)};
      });
      for (size_t i = 0; i < parameters.size(); ++i) {
        std::string what = label(c.parameter) + " tensor " + std::to_string(i);
        same(parameters[i], "parameter " + what);
        if (c.has_master) same(masters[i], "master " + what);
        same(firsts[i], "first " + what);
        same(seconds[i], "second " + what);
      }
    }
}

// Masters of which only the low halves are kept give the same bits as whole ones, on both devices.
TEST_F(CudaIndex, AdamWithSplitMasters) {
  for (DType moments : {DType::F32, DType::BF16, DType::F16})
    for (DType gradient : {DType::F32, DType::BF16})
      for (int64_t n : {1, 1003, 40003}) {
        Both parameter = uniform({n}, DType::BF16), remainder = integers({n}, -32768, 32768, DType::I16);
        Both master = output({n}, DType::F32), first = uniform({n}, moments),
             second = uniform({n}, moments, 0.01, 1);
        Both grad = uniform({n}, gradient), back = output({n}, DType::F32), value = output({n}, DType::BF16);
        run(&KernelTable::split_float, [&](auto on) {
          return SplitFloatArgs{on(master), on(parameter), on(remainder), true};
        });
        same(master, 0, "joined");
        auto copy_of = [&](const Both& x) {
          Both y = output(x.cpu.shape(), x.cpu.dtype());
          run(&KernelTable::copy, [&](auto on) { return CopyArgs{on(x), on(y)}; });
          return y;
        };
        auto step = [&](const Both& target, const Both& whole, const Both& rest) {
          Both m = copy_of(first), v = copy_of(second);
          std::vector<AdamTensor> list[2] = {
              {{target.cpu, whole.cpu, grad.cpu, m.cpu, v.cpu, 0.1, 1, rest.cpu}},
              {{target.gpu, whole.gpu, grad.gpu, m.gpu, v.gpu, 0.1, 1, rest.gpu}}};
          int which = 0;
          run(&KernelTable::adam,
              [&](auto) { return AdamArgs{.tensors = list[which++], .lr = 1e-3, .step = 3}; });
        };
        step(value, master, {});
        step(parameter, {}, remainder);
        run(&KernelTable::split_float, [&](auto on) {
          return SplitFloatArgs{on(back), on(parameter), on(remainder), true};
        });
        std::string what = label(moments) + " n=" + std::to_string(n);
        same(back, "split masters " + what);
        EXPECT_EQ(values(cpu, back.cpu), values(cpu, master.cpu)) << what;
        EXPECT_EQ(values(gpu(), back.gpu), values(gpu(), master.gpu)) << what;
        same(parameter, "parameters " + what);
      }
}

TEST_F(CudaIndex, SumSquares) {
  std::vector<Both> held;
  std::vector<Tensor> list[2];
  for (int i = 0; i < 300; ++i) {
    held.push_back(uniform({1 + i * 97 % 4000}, kFloats[i % 4]));
    list[0].push_back(held.back().cpu);
    list[1].push_back(held.back().gpu);
  }
  held.push_back(uniform({200001}, DType::BF16));
  list[0].push_back(held.back().cpu.slice(0, 1, 200001));
  list[1].push_back(held.back().gpu.slice(0, 1, 200001));
  for (bool accumulate : {false, true}) {
    Both out = uniform({1}, DType::F64);
    int which = 0;
    run(&KernelTable::sum_squares, [&](auto on) {
      return SumSquaresArgs{list[which++], on(out), accumulate};
    });
    same(out, 1e-12, "sum of squares");
  }
}

TEST_F(CudaIndex, CountZeros) {
  std::vector<Both> held;
  std::vector<Tensor> list[2];
  double zeros = 0;
  for (int i = 0; i < 200; ++i) {
    held.push_back(uniform({1 + i * 131 % 40000}, kFloats[i % 4]));
    const Both& one = held.back();
    const int64_t n = one.cpu.numel() / 3;
    for (const auto& [ctx, tensor] : {std::pair{&cpu, one.cpu}, {&gpu(), one.gpu}})
      ctx->kernels->fill(ctx->kernel_context(), {tensor.slice(0, 0, n), i % 2 == 0 ? 0.0 : 2.0});
    if (i % 2 == 0) zeros += static_cast<double>(n);
    list[0].push_back(one.cpu);
    list[1].push_back(one.gpu);
  }
  Both out = uniform({1}, DType::F64);
  int which = 0;
  run(&KernelTable::count_zeros, [&](auto on) { return CountZerosArgs{list[which++], on(out)}; });
  same(out, "number of zeros");
  EXPECT_GE(values(cpu, out.cpu)[0], zeros);
}

}  // namespace
}  // namespace megatron::testing
