// Tokens that the GPU draws, against exact sums over sorted logits.
#include <algorithm>
#include <limits>
#include <numeric>

#include "unit/cuda/twin.h"

namespace megatron::testing {
namespace {

struct Draw {
  double temperature = 1, top_k = 0, top_p = 1, min_p = 0, uniform = 0;
};

class CudaSample : public Twin {
 protected:
  std::vector<int64_t> sample(const Tensor& logits, const std::vector<Draw>& draws) {
    std::vector<double> settings;
    for (const Draw& d : draws)
      settings.insert(settings.end(), {d.temperature, d.top_k, d.top_p, d.min_p, d.uniform});
    RankContext& ctx = gpu();
    const Tensor tokens = ctx.empty({logits.size(0)}, DType::I64);
    EXPECT_TRUE(ctx.kernels->sample(ctx.kernel_context(),
                                    {logits, ctx.from_vector(settings, {logits.size(0), 5}), tokens}));
    return ctx.to_vector<int64_t>(tokens);
  }
  // Whether `token` may be drawn: within what the cuts leave, and where `uniform` points to, but for
  // rounding.
  static void expect_drawn(const double* logits, int64_t n, const Draw& d, int64_t token,
                           const std::string& what) {
    ASSERT_TRUE(token >= 0 && token < n) << what << ": " << token;
    std::vector<double> sorted(logits, logits + n);
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    const auto weight = [&](double logit) { return std::exp((logit - sorted[0]) / d.temperature); };
    double floor = d.min_p > 0 ? sorted[0] + d.temperature * std::log(d.min_p) : sorted.back();
    if (d.top_k > 0 && d.top_k < static_cast<double>(n))
      floor = std::max(floor, sorted[static_cast<size_t>(d.top_k) - 1]);
    double total = 0, sum = 0;
    for (double logit : sorted) total += logit >= floor ? weight(logit) : 0;
    if (d.top_p > 0 && d.top_p < 1)
      for (double logit : sorted)
        if ((sum += weight(logit)) >= d.top_p * total) {
          floor = std::max(floor, logit);
          break;
        }
    total = 0;
    double before = 0;
    for (int64_t i = 0; i < n; ++i) {
      if (i == token) before = total;
      if (logits[i] >= floor) total += weight(logits[i]);
    }
    EXPECT_GE(logits[token], floor) << what << ": token " << token << " is cut";
    EXPECT_GE(d.uniform, before / total - 2e-5) << what << ": token " << token;
    EXPECT_LE(d.uniform, (before + weight(logits[token])) / total + 2e-5) << what << ": token " << token;
  }
};

TEST_F(CudaSample, DrawsWhatIsLeft) {
  const std::vector<Draw> kinds = {{},
                                   {.temperature = 0.3},
                                   {.temperature = 4},
                                   {.top_k = 50},
                                   {.top_k = 2},
                                   {.top_p = 0.9},
                                   {.top_p = 0.01},
                                   {.temperature = 3, .top_p = 0.999},
                                   {.min_p = 0.1},
                                   {.temperature = 2, .top_k = 300, .top_p = 0.5, .min_p = 1e-3},
                                   {.top_k = 1e6, .top_p = 0}};
  for (DType dtype : some_of({DType::F32, DType::BF16, DType::F16}))
    for (int64_t n : {1, 3, 250, 8192, 33335, 128256}) {
      std::vector<Draw> draws;
      for (const Draw& kind : kinds)
        for (double uniform : {0.0, 0.137, 0.5, 0.8114, 1 - 0x1p-53}) {
          draws.push_back(kind);
          draws.back().uniform = uniform;
        }
      const auto rows = static_cast<int64_t>(draws.size());
      const Both logits = uniform({rows, n}, dtype, -12, 9);
      const std::vector<int64_t> tokens = sample(logits.gpu, draws);
      const std::vector<double> exact = values(cpu, logits.cpu);
      for (int64_t r = 0; r < rows; ++r)
        expect_drawn(exact.data() + r * n, n, draws[static_cast<size_t>(r)], tokens[static_cast<size_t>(r)],
                     fmt::format("{} logits, draw {} {}", n, r, label(dtype)));
      EXPECT_EQ(sample(logits.gpu, draws), tokens) << "a second time";
      const std::vector<int64_t> one = sample(logits.gpu.slice(0, 7, 8), {draws[7]});
      EXPECT_EQ(one[0], tokens[7]) << "alone";
    }
}

TEST_F(CudaSample, TakesTheLargest) {
  const double infinity = std::numeric_limits<double>::infinity(),
               nan = std::numeric_limits<double>::quiet_NaN();
  const Both logits = cast({1,         5,        5,         -3,   // the first among equals
                            nan,       2,        -infinity, 1,    // NaN is passed over
                            0,         infinity, 1,         2,    // nothing can be drawn from these
                            nan,       nan,      nan,       nan,  //
                            -infinity, 4,        nan,       -9,   // one has all of the probability
                            7,         7,        7,         7},   // top-k keeps those as likely as the last
                           {6, 4}, DType::F32);
  EXPECT_EQ(sample(logits.gpu, {{.temperature = 0, .uniform = 0.9},
                                {.temperature = 0},
                                {},
                                {},
                                {.uniform = 0.9999},
                                {.top_k = 2, .uniform = 0.99}}),
            (std::vector<int64_t>{1, 1, -1, -1, 1, 3}));
  EXPECT_EQ(sample(logits.gpu, {{.top_k = 1, .uniform = 0.9},
                                {.top_k = 1, .uniform = 0.9},
                                {.temperature = 0},
                                {.temperature = 0},
                                {.top_p = 0.5, .uniform = 0.5},
                                {.top_p = 0.1, .uniform = 0.3}}),
            (std::vector<int64_t>{1, 1, -1, -1, 1, 1}));
}

// As often as their probabilities say: a chi-square of 15 degrees of freedom, which chance leaves above 44.3
// once in ten thousand.
TEST_F(CudaSample, DrawsAsOftenAsLikely) {
  constexpr int64_t draws = 20000, n = 16;
  std::vector<double> row, probability, all;
  for (int64_t i = 0; i < n; ++i) row.push_back(0.3 * static_cast<double>(i * 7 % n));
  for (double logit : row) probability.push_back(std::exp(logit / 1.5));
  const double total = std::accumulate(probability.begin(), probability.end(), 0.0);
  std::vector<Draw> settings;
  for (int64_t i = 0; i < draws; ++i) {
    all.insert(all.end(), row.begin(), row.end());
    settings.push_back({.temperature = 1.5, .uniform = Philox::at({11, 3}, i).word[0] * 0x1p-32});
  }
  std::vector<double> found(n);
  for (int64_t token : sample(cast(all, {draws, n}, DType::F32).gpu, settings))
    ++found.at(static_cast<size_t>(token));
  double chi = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    const double expected = draws * probability[i] / total;
    chi += (found[i] - expected) * (found[i] - expected) / expected;
  }
  EXPECT_LT(chi, 44.3);
}

}  // namespace
}  // namespace megatron::testing
