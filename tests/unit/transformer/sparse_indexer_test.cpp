#include "megatron/transformer/sparse_indexer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "megatron/ops/rope.h"
#include "support/gradcheck.h"

// The indexer of sparse attention against plain loops, its loss against central differences.
namespace megatron {
namespace {

using testing::random_tensor;
using Values = std::vector<double>;

constexpr int64_t kBatch = 2, kLength = 6, kTokens = kBatch * kLength, kHidden = 7, kRank = 5, kHeads = 3,
                  kWidth = 6, kTurned = 4, kTopK = 3;
constexpr double kEpsilon = 1e-6, kCoefficient = 0.3, kScale = 0.4;

ModelConfig sparse_config(bool chosen_alone) {
  ModelConfig config;
  config.hidden_size = kHidden;
  config.q_lora_rank = kRank;
  config.init_method_std = 0.6;
  config.experimental_attention_variant = AttentionVariant::dsa;
  config.dsa_indexer_n_heads = kHeads;
  config.dsa_indexer_head_dim = kWidth;
  config.dsa_indexer_topk = kTopK;
  config.dsa_indexer_loss_coeff = kCoefficient;
  config.dsa_indexer_use_sparse_loss = chosen_alone;
  config.dsa_indexer_k_norm_epsilon = kEpsilon;
  return config;
}

struct Fixture {
  explicit Fixture(bool chosen_alone) : indexer("indexer", 0, sparse_config(chosen_alone), {}) {
    for (Parameter* parameter : indexer.parameters()) {
      parameter->allocate(ctx, DType::F64);
      parameter->initialize(ctx, 11);
      parameter->allocate_gradient(ctx);
    }
    // Other than at their beginning, so that they count.
    for (size_t i : {size_t{2}, size_t{3}})
      ctx.kernels->copy(ctx.kernel_context(),
                        {random_tensor(ctx, {kWidth}, 20 + i), indexer.parameters()[i]->value});
    seq.batch = kBatch;
    seq.length = seq.row_length = kLength;
    Values cosines, sines;
    for (int64_t token = 0; token < kTokens; ++token)
      for (int64_t i = 0; i < kTurned / 2; ++i) {
        const double angle = static_cast<double>(token % kLength) * std::pow(0.3, static_cast<double>(i));
        cosines.push_back(std::cos(angle));
        sines.push_back(std::sin(angle));
      }
    seq.rope_cos = ctx.from_vector(cosines, {kTokens, kTurned / 2});
    seq.rope_sin = ctx.from_vector(sines, {kTokens, kTurned / 2});
  }

  double loss() {
    Tape tape(ctx);
    TapeScope scope(ctx, &tape);
    const SparseIndexer::Result index = indexer.forward(ctx, x, latent, seq);
    return ctx.to_vector<double>(indexer.loss(ctx, index, q, k, kScale, seq))[0];
  }

  RankContext ctx;
  SparseIndexer indexer;
  SeqInfo seq;
  Tensor x = random_tensor(ctx, {kTokens, kHidden}, 1), latent = random_tensor(ctx, {kTokens, kRank}, 2),
         q = random_tensor(ctx, {kTokens, 2, 5}, 3), k = random_tensor(ctx, {kTokens, 2, 5}, 4);
};

Values rows_times(const Values& rows, const Values& weight, int64_t inner, int64_t outer) {
  Values y;
  for (size_t row = 0; row < rows.size() / static_cast<size_t>(inner); ++row)
    for (int64_t o = 0; o < outer; ++o) {
      double sum = 0;
      for (int64_t i = 0; i < inner; ++i)
        sum += rows[row * static_cast<size_t>(inner) + static_cast<size_t>(i)] *
               weight[static_cast<size_t>(o * inner + i)];
      y.push_back(sum);
    }
  return y;
}

// Turns channels i and i + half of every head.
void turn(Fixture& f, Values& x, int64_t heads) {
  const Values c = f.ctx.to_vector<double>(f.seq.rope_cos), s = f.ctx.to_vector<double>(f.seq.rope_sin);
  const int64_t half = kTurned / 2;
  for (int64_t row = 0; row < kTokens * heads; ++row)
    for (int64_t i = 0; i < half; ++i) {
      double &a = x[static_cast<size_t>(row * kWidth + i)],
             &b = x[static_cast<size_t>(row * kWidth + i + half)];
      const auto at = static_cast<size_t>(row / heads * half + i);
      const double turned = a * c[at] - b * s[at];
      b = b * c[at] + a * s[at];
      a = turned;
    }
}

// Scores of keys up to the query, [tokens, length].
Values plain_scores(Fixture& f) {
  const auto weight = [&](size_t i) { return f.ctx.to_vector<double>(f.indexer.parameters()[i]->value); };
  const Values x = f.ctx.to_vector<double>(f.x), gamma = weight(2), beta = weight(3);
  Values q = rows_times(f.ctx.to_vector<double>(f.latent), weight(0), kRank, kHeads * kWidth);
  Values k = rows_times(x, weight(1), kHidden, kWidth);
  for (int64_t token = 0; token < kTokens; ++token) {
    double* row = k.data() + token * kWidth;
    const double mean = std::accumulate(row, row + kWidth, 0.0) / kWidth;
    double variance = 0;
    for (int64_t i = 0; i < kWidth; ++i) variance += (row[i] - mean) * (row[i] - mean) / kWidth;
    for (int64_t i = 0; i < kWidth; ++i)
      row[i] = (row[i] - mean) / std::sqrt(variance + kEpsilon) * gamma[static_cast<size_t>(i)] +
               beta[static_cast<size_t>(i)];
  }
  turn(f, q, kHeads);
  turn(f, k, 1);
  const Values w = rows_times(x, weight(4), kHidden, kHeads);
  Values scores(static_cast<size_t>(kTokens * kLength), 0);
  for (int64_t token = 0; token < kTokens; ++token)
    for (int64_t key = 0; key <= token % kLength; ++key) {
      const int64_t other = token / kLength * kLength + key;
      for (int64_t head = 0; head < kHeads; ++head) {
        double product = 0;
        for (int64_t i = 0; i < kWidth; ++i)
          product += q[static_cast<size_t>((token * kHeads + head) * kWidth + i)] *
                     k[static_cast<size_t>(other * kWidth + i)];
        scores[static_cast<size_t>(token * kLength + key)] += w[static_cast<size_t>(token * kHeads + head)] *
                                                              std::max(0.0, product) /
                                                              std::sqrt(double{kHeads} * double{kWidth});
      }
    }
  return scores;
}

// Chooses the best of the keys up to each query.
std::vector<bool> plain_choice(const Values& scores) {
  std::vector<bool> chosen(scores.size(), false);
  for (int64_t token = 0; token < kTokens; ++token) {
    std::vector<int64_t> keys(static_cast<size_t>(token % kLength + 1));
    std::iota(keys.begin(), keys.end(), 0);
    std::stable_sort(keys.begin(), keys.end(), [&](int64_t a, int64_t b) {
      return scores[static_cast<size_t>(token * kLength + a)] >
             scores[static_cast<size_t>(token * kLength + b)];
    });
    for (size_t i = 0; i < std::min<size_t>(keys.size(), kTopK); ++i)
      chosen[static_cast<size_t>(token * kLength + keys[i])] = true;
  }
  return chosen;
}

double plain_loss(Fixture& f, bool chosen_alone) {
  const Values scores = plain_scores(f), q = f.ctx.to_vector<double>(f.q), k = f.ctx.to_vector<double>(f.k);
  const std::vector<bool> chosen = plain_choice(scores);
  const auto softmax = [](Values values) {
    double sum = 0;
    for (double& value : values) sum += value = std::exp(value);
    for (double& value : values) value /= sum;
    return values;
  };
  double loss = 0;
  for (int64_t token = 0; token < kTokens; ++token) {
    std::vector<int64_t> keys;
    for (int64_t key = 0; key <= token % kLength; ++key)
      if (!chosen_alone || chosen[static_cast<size_t>(token * kLength + key)]) keys.push_back(key);
    Values target(keys.size(), 0), own;
    for (int64_t head = 0; head < 2; ++head) {
      Values attention;
      for (int64_t key : keys) {
        double product = 0;
        for (int64_t i = 0; i < 5; ++i)
          product += q[static_cast<size_t>((token * 2 + head) * 5 + i)] *
                     k[static_cast<size_t>(((token / kLength * kLength + key) * 2 + head) * 5 + i)];
        attention.push_back(kScale * product);
      }
      attention = softmax(attention);
      for (size_t i = 0; i < keys.size(); ++i) target[i] += attention[i] / 2;
    }
    for (int64_t key : keys) own.push_back(scores[static_cast<size_t>(token * kLength + key)]);
    own = softmax(own);
    for (size_t i = 0; i < keys.size(); ++i)
      loss += target[i] * std::log((target[i] + 1e-10) / (own[i] + 1e-10));
  }
  return kCoefficient * loss / kTokens;
}

TEST(SparseIndexer, ScoresAndChoiceAreThoseOfPlainLoops) {
  Fixture f(false);
  const SparseIndexer::Result index = f.indexer.forward(f.ctx, f.x, f.latent, f.seq);
  const Values scores = f.ctx.to_vector<double>(index.scores), bias = f.ctx.to_vector<double>(index.bias),
               expected = plain_scores(f);
  const std::vector<bool> chosen = plain_choice(expected);
  int64_t left_out = 0;
  for (int64_t token = 0; token < kTokens; ++token)
    for (int64_t key = 0; key <= token % kLength; ++key) {
      const auto at = static_cast<size_t>(token * kLength + key);
      EXPECT_NEAR(scores[at], expected[at], 1e-12) << token << ", " << key;
      EXPECT_EQ(bias[at] == 0, chosen[at]) << token << ", " << key;
      left_out += chosen[at] ? 0 : 1;
    }
  EXPECT_EQ(left_out, kBatch * (1 + 2 + 3));  // of queries with more than three keys
}

TEST(SparseIndexer, LossAndGradients) {
  for (const bool chosen_alone : {false, true}) {
    SCOPED_TRACE(chosen_alone);
    Fixture f(chosen_alone);
    EXPECT_NEAR(f.loss(), plain_loss(f, chosen_alone), 1e-12);
    Tape tape(f.ctx);
    Tensor watched = tape.watch(f.x), loss;
    {
      TapeScope scope(f.ctx, &tape);
      const SparseIndexer::Result index = f.indexer.forward(f.ctx, watched, f.latent, f.seq);
      loss = f.indexer.loss(f.ctx, index, f.q, f.k, kScale, f.seq);
    }
    tape.backward(f.ctx, loss);
    EXPECT_FALSE(tape.grad(watched)) << "no gradient leaves the indexer";
    for (Parameter* parameter : f.indexer.parameters()) {
      const Values grad = f.ctx.to_vector<double>(parameter->accumulator.main_grad);
      double largest = 0;
      for (int64_t i = 0; i < parameter->value.numel(); ++i) {
        double& value = parameter->value.data<double>()[i];
        const double before = value, step = 1e-5;
        value = before + step;
        const double up = f.loss();
        value = before - step;
        const double down = f.loss();
        value = before;
        EXPECT_NEAR(grad[static_cast<size_t>(i)], (up - down) / (2 * step), 1e-8)
            << parameter->name << " " << i;
        largest = std::max(largest, std::abs(grad[static_cast<size_t>(i)]));
      }
      EXPECT_GT(largest, 1e-4) << parameter->name;
    }
  }
}

}  // namespace
}  // namespace megatron
