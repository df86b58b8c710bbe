#include <gtest/gtest.h>

#include <cmath>

#include "megatron/models/decoder_shape.h"
#include "megatron/training/parity.h"
#include "megatron/training/setup/checkpoint_tensors.h"
#include "megatron/training/step/rank_trainer.h"
#include "unit/training/fp8_layouts.h"

// fp8 with scales from earlier steps, and on several ranks.
namespace megatron {
namespace {

Config small(Fp8Recipe recipe = Fp8Recipe::delayed) {
  Config config;
  config.model =
      llama_style({.layers = 2, .hidden = 64, .heads = 4, .groups = 2, .ffn = 96, .vocab = 64, .length = 32});
  config.model.make_vocab_size_divisible_by = 16;
  config.train.micro_batch_size = 2;
  config.train.global_batch_size = 4;
  config.precision.fp8 = Fp8Format::hybrid;
  config.precision.fp8_recipe = recipe;
  config.precision.fp8_amax_history_len = 3;
  config.precision.fp8_amax_compute_algo = AmaxAlgorithm::max;
  return config;
}

struct Trainer {
  Config config;
  RankContext ctx;
  ParallelContext alone;
  RankTrainer trainer{ctx, config, alone, DType::F32};

  explicit Trainer(Config c) : config(std::move(c)) {}
  double step(const std::vector<int64_t>& tokens) { return trainer.step(ctx, tokens, 1e-3).loss; }
  std::vector<float> history(size_t weight) {
    return ctx.to_vector<float>(trainer.fp8_history()->state()[weight].history);
  }
};

std::vector<double> losses(const Config& config, const ParallelSizes& sizes, int steps) {
  ParityRun run{.sizes = sizes, .dtype = DType::F64};
  run.lr = 1e-3;
  return train_layout(config, run, random_batches(config, steps)).losses;
}

TEST(Fp8History, TheLastStepsMakeTheScale) {
  for (AmaxAlgorithm algorithm : {AmaxAlgorithm::max, AmaxAlgorithm::most_recent}) {
    Config config = small();
    config.precision.fp8_amax_compute_algo = algorithm;
    config.precision.fp8_margin = 1;
    Trainer run(config);
    const auto batches = random_batches(config, 5);
    const Fp8History::State first = run.trainer.fp8_history()->state()[0];
    EXPECT_EQ(first.weight->name, "decoder.layers.0.self_attention.linear_qkv.weight");
    std::vector<std::vector<float>> rows;  // the last step first
    for (const auto& batch : batches) {
      run.step(batch);
      const std::vector<float> history = run.history(0);
      rows.insert(rows.begin(), {history.begin(), history.begin() + 3});
      for (size_t i = 0; i < std::min<size_t>(3, rows.size()); ++i)
        for (size_t kind = 0; kind < 3; ++kind) {
          EXPECT_GT(history[3 * i + kind], 0);
          EXPECT_EQ(history[3 * i + kind], rows[i][kind]);
        }
      const ops::Fp8Weight& fp8 = *first.weight->fp8;
      size_t kind = 0;
      for (const ops::Fp8Delay* delay : {&fp8.input_delay, &fp8.weight_delay, &fp8.gradient_delay}) {
        float amax = 0;
        for (size_t i = 0; i < std::min<size_t>(algorithm == AmaxAlgorithm::max ? 3 : 1, rows.size()); ++i)
          amax = std::max(amax, rows[i][kind]);
        const float largest = kind == 2 ? 57344.f : 448.f;
        EXPECT_EQ(static_cast<float>(run.ctx.item(delay->scale)), largest / 2 / amax);
        EXPECT_EQ(run.ctx.item(delay->amax), 0);
        ++kind;
      }
    }
  }
}

TEST(Fp8History, TrainsLikeCurrentScaling) {
  const auto delayed = losses(small(), {}, 8), current = losses(small(Fp8Recipe::tensorwise), {}, 8);
  Config plain = small();
  plain.precision.fp8 = Fp8Format::none;
  const auto exact = losses(plain, {}, 8);
  EXPECT_EQ(delayed[0], current[0]);  // the first step has no history
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_NEAR(delayed[i], exact[i], 1e-2 * exact[i]) << "step " << i;
    EXPECT_NE(exact[i], current[i]) << "step " << i;
  }
}

// Scales are those of whole tensors, whatever part of them a rank has.
TEST(Fp8History, EveryLayoutScalesAlike) {
  const auto one = losses(small(), {}, 4);
  for (const testing::Fp8Layout& layout : testing::kFp8Layouts) {
    const auto many = losses(layout.of(small()), layout.sizes(), 4);
    // Sums in another order now and then fall on the other side of an edge between two fp8 values. The first
    // step of a split tensor is scaled by its part.
    for (size_t i = 0; i < 4; ++i)
      EXPECT_NEAR(many[i], one[i], 1e-3 * one[i]) << layout.name() << ", step " << i;
  }
}

TEST(Fp8History, ContinuesFromItsCheckpoint) {
  const auto batches = random_batches(small(), 4);
  Trainer whole(small()), before(small()), after(small());
  for (int i = 0; i < 2; ++i) {
    whole.step(batches[static_cast<size_t>(i)]);
    before.step(batches[static_cast<size_t>(i)]);
  }
  auto from = checkpoint_tensors(before.trainer), to = checkpoint_tensors(after.trainer);
  ASSERT_EQ(from.size(), to.size());
  int histories = 0;
  for (size_t i = 0; i < from.size(); ++i) {
    ASSERT_EQ(from[i].name, to[i].name);
    histories += from[i].name.starts_with("fp8.history.");
    after.ctx.kernels->copy(after.ctx.kernel_context(), {from[i].tensor, to[i].tensor});
  }
  EXPECT_EQ(histories, 8);
  after.trainer.optimizer().set_steps(2);
  after.trainer.fp8_history()->use(after.ctx);
  for (size_t i = 2; i < 4; ++i) EXPECT_EQ(after.step(batches[i]), whole.step(batches[i])) << "step " << i;
}

}  // namespace
}  // namespace megatron
