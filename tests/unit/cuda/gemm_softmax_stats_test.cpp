// The output layer that leaves statistics for cross entropy: against the GEMM and the statistics one by
// one, and the loss of the head with it against the CPU.
#include "megatron/kernels/gemm_fused.h"

#include "megatron/device/gpu_info.h"
#include "megatron/ops/cross_entropy.h"
#include "support/gradcheck.h"
#include "unit/cuda/twin.h"

namespace megatron::testing {
namespace {

class CudaGemmSoftmaxStats : public Sm90Twin {
 protected:
  struct Sizes {
    int64_t rows, depth, columns, valid;
  };
  // Less than a tile, whole tiles, edges everywhere, a tile of padding, many tiles for a block, one step.
  const std::vector<Sizes> sizes{{40, 64, 96, 96},       {256, 896, 512, 512},   {1001, 200, 1288, 1283},
                                 {333, 896, 3000, 2741}, {257, 136, 2048, 1023}, {20001, 64, 264, 257},
                                 {300, 896, 8200, 8192}};

  struct Stats {
    Both maximum, sum_exp, target;
  };
  Stats stats_of(int64_t rows) {
    return {output({rows}, DType::F32), output({rows}, DType::F32), output({rows}, DType::F32)};
  }
  static CrossEntropyStatsArgs args_of(const Tensor& logits, const Both& labels, int64_t begin, int64_t valid,
                                       const Stats& stats) {
    return {.logits = logits,
            .labels = labels.gpu,
            .vocab_begin = begin,
            .valid = valid,
            .maximum = stats.maximum.gpu,
            .sum_exp = stats.sum_exp.gpu,
            .target = stats.target.gpu,
            .sum_logits = {}};
  }
  bool multiply(const Both& a, const Both& b, const CrossEntropyStatsArgs& stats) {
    Tensor tiles =
        gpu().empty({gemm_softmax_stats_tiles(stats.logits.size(0), stats.logits.size(1))}, DType::F32);
    return gpu().kernels->gemm_softmax_stats(gpu().kernel_context(), {a.gpu, b.gpu, stats, tiles});
  }
  // Some are ignored, and some lie before and after this rank's part of the vocabulary.
  Both some_labels(int64_t rows, int64_t begin, int64_t valid) {
    Both labels = integers({rows}, std::max<int64_t>(0, begin - 50), begin + valid + (begin ? 50 : 0));
    for (int64_t i = 3; i < rows; i += 11) labels.cpu.data<int64_t>()[i] = -100;
    return on_both(labels.cpu);
  }
};

TEST_F(CudaGemmSoftmaxStats, EqualsGemmThenStatistics) {
  for (auto [rows, depth, columns, valid] : sizes)
    for (int64_t begin : {0, 5000}) {
      Both a = uniform({rows, depth}, DType::BF16), b = uniform({columns, depth}, DType::BF16, -0.4, 0.4);
      Both labels = some_labels(rows, begin, valid), logits = output({rows, columns}, DType::BF16);
      Stats got = stats_of(rows), expected = stats_of(rows);
      ASSERT_TRUE(multiply(a, b, args_of(logits.gpu, labels, begin, valid, got)));
      std::string what = logits.gpu.str() + " valid " + std::to_string(valid);
      // Of the logits as they are in memory.
      gpu().kernels->cross_entropy_stats(gpu().kernel_context(),
                                         args_of(logits.gpu, labels, begin, valid, expected));
      EXPECT_EQ(values(gpu(), got.maximum.gpu), values(gpu(), expected.maximum.gpu)) << what;
      EXPECT_EQ(values(gpu(), got.target.gpu), values(gpu(), expected.target.gpu)) << what;
      auto sums = values(gpu(), got.sum_exp.gpu), right = values(gpu(), expected.sum_exp.gpu);
      for (size_t i = 0; i < sums.size(); ++i) ASSERT_NEAR(sums[i], right[i], 1e-5 * right[i]) << what << i;
      // The GEMM itself, but for padding.
      Both plain = output({rows, columns}, DType::BF16);
      gpu().kernels->gemm(gpu().kernel_context(), {a.gpu, b.gpu.transpose(0, 1), plain.gpu});
      auto ours = values(gpu(), logits.gpu), theirs = values(gpu(), plain.gpu);
      for (size_t i = 0; i < ours.size(); ++i) {
        if (static_cast<int64_t>(i) % columns >= valid)
          ASSERT_EQ(ours[i], -std::numeric_limits<double>::infinity()) << what << " element " << i;
        else
          ASSERT_NEAR(ours[i], theirs[i], 8e-3 * std::abs(theirs[i]) + 1e-4) << what << " element " << i;
      }
      // The same bits once more.
      Both again = output({rows, columns}, DType::BF16);
      Stats second = stats_of(rows);
      ASSERT_TRUE(multiply(a, b, args_of(again.gpu, labels, begin, valid, second)));
      EXPECT_EQ(values(gpu(), again.gpu), ours) << what;
      EXPECT_EQ(values(gpu(), second.sum_exp.gpu), sums) << what;
    }
}

// A rank of a vocabulary that is spread may hold padding alone.
TEST_F(CudaGemmSoftmaxStats, PaddingAloneContributesNothing) {
  Both a = uniform({130, 64}, DType::BF16), b = uniform({264, 64}, DType::BF16),
       logits = output({130, 264}, DType::BF16), labels = some_labels(130, 0, 264);
  Stats got = stats_of(130);
  ASSERT_TRUE(multiply(a, b, args_of(logits.gpu, labels, 528, 0, got)));
  EXPECT_EQ(values(gpu(), got.maximum.gpu),
            std::vector<double>(130, -std::numeric_limits<double>::infinity()));
  EXPECT_EQ(values(gpu(), got.sum_exp.gpu), std::vector<double>(130, 0));
  EXPECT_EQ(values(gpu(), got.target.gpu), std::vector<double>(130, 0));
}

// NaN must not be lost.
TEST_F(CudaGemmSoftmaxStats, ShowsNan) {
  Both a = uniform({64, 64}, DType::BF16), b = uniform({264, 64}, DType::BF16),
       logits = output({64, 264}, DType::BF16), labels = some_labels(64, 0, 264);
  Tensor row = a.cpu.slice(0, 5, 6);
  cpu.kernels->fill(cpu.kernel_context(), {row, std::numeric_limits<double>::quiet_NaN()});
  a = on_both(a.cpu);
  Stats got = stats_of(64);
  ASSERT_TRUE(multiply(a, b, args_of(logits.gpu, labels, 0, 264, got)));
  auto sums = values(gpu(), got.sum_exp.gpu);
  for (size_t i = 0; i < sums.size(); ++i) EXPECT_EQ(std::isnan(sums[i]), i == 5) << i;
  // One weight of a token that nothing else has a chance against: what is left are −∞ and one NaN.
  for (int64_t column : {0, 100, 263}) {
    std::vector<double> weight(264 * 64, -1), ones(64 * 64, 1);
    const double infinity = std::numeric_limits<double>::infinity();
    for (int64_t row = 0; row < 264; ++row)
      weight[static_cast<size_t>(row * 64)] = row == 50 ? 1 : row == column ? std::nan("") : -infinity;
    Both same_tokens = cast(ones, {64, 64}, DType::BF16), weights = cast(weight, {264, 64}, DType::BF16);
    ASSERT_TRUE(multiply(same_tokens, weights, args_of(logits.gpu, labels, 0, 264, got)));
    Stats apart = stats_of(64);
    gpu().kernels->cross_entropy_stats(gpu().kernel_context(), args_of(logits.gpu, labels, 0, 264, apart));
    for (const Stats& stats : {got, apart})
      for (double sum : values(gpu(), stats.sum_exp.gpu)) EXPECT_TRUE(std::isnan(sum)) << column;
  }
}

TEST_F(CudaGemmSoftmaxStats, LeavesOthersAlone) {
  for (auto [dtype, depth] : {std::pair{DType::F32, 64}, {DType::F16, 64}, {DType::BF16, 60}}) {
    Both a = uniform({128, depth}, dtype), b = uniform({256, depth}, dtype), y = output({128, 256}, dtype),
         labels = some_labels(128, 0, 256);
    EXPECT_FALSE(multiply(a, b, args_of(y.gpu, labels, 0, 256, stats_of(128))));
    same(y, 0, "untouched");
  }
}

// Loss and gradients of a head: padded vocabulary, ignored labels, z-loss, chunks that do not fill tiles, and
// the kernels that take ranks with parts of the vocabulary.
TEST_F(CudaGemmSoftmaxStats, AHeadTrainsAsOnTheCpu) {
  constexpr int64_t tokens = 301, hidden = 136, columns = 1288;
  auto run = [&](RankContext& ctx, const ops::CrossEntropyOptions& options) {
    TestWeight weight(ctx, random_tensor(ctx, {columns, hidden}, 1, DType::BF16, 0.4));
    std::vector<int64_t> ids(tokens);
    for (int64_t i = 0; i < tokens; ++i) ids[static_cast<size_t>(i)] = i % 7 == 2 ? -100 : i * 37 % 1200;
    Tape tape(ctx);
    Tensor x = tape.watch(random_tensor(ctx, {tokens, hidden}, 2, DType::BF16)), loss;
    {
      TapeScope scope(ctx, &tape);
      loss = ops::linear_cross_entropy_sum(ctx, x, weight.get(), ctx.from_vector(ids, {tokens}),
                                           ctx.full({1}, DType::F32, 1.0 / tokens).expand({tokens}), options,
                                           128);
    }
    tape.backward(ctx, loss);
    return std::vector{loss.detach(), tape.grad(x), weight.accumulator.main_grad};
  };
  auto nothing = [](RankContext&, ops::CrossEntropyStats&) {};
  for (const ops::CrossEntropyOptions& options : {ops::CrossEntropyOptions{},
                                                  {.z_loss = 1e-3, .vocab_size = 1201},
                                                  {.smoothing = 0.1},
                                                  {.z_loss = 1e-3, .vocab_size = 1201, .reduce = nothing}}) {
    auto on_cpu = run(cpu, options), on_gpu = run(gpu(), options), again = run(gpu(), options);
    alike({on_cpu[0], on_gpu[0]}, 1e-3, "loss");
    for (size_t i = 0; i < on_cpu.size(); ++i) {
      alike({on_cpu[i], on_gpu[i]}, 2e-2, "result " + std::to_string(i));
      EXPECT_EQ(values(gpu(), on_gpu[i]), values(gpu(), again[i])) << "result " << i;
    }
  }
}

}  // namespace
}  // namespace megatron::testing
