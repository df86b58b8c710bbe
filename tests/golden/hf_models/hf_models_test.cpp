#include <gtest/gtest.h>

#include "golden/hf_models/cases.h"
#include "golden/hf_models/gradients.h"
#include "golden/hf_models/hf_case.h"
#include "megatron/inference/generate.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/reduce.h"
#include "megatron/training/step/rank_trainer.h"
#include "support/golden.h"

// Hugging Face's own models: logits, losses, gradients, a training curve and greedy text, from their files.
namespace megatron {
namespace {

using testing::is_close;
using testing::to_doubles;
using testing::Tolerance;

class HfModels : public testing::HfCase {
 protected:
  SafetensorsFile grads_{path("grads.safetensors")};
  Json meta_ = Json::read(path("meta.json"));
  double noise(const char* what) const { return 10 * meta_.at("fp32_vs_fp64").at(what).as_double(); }
};

TEST_P(HfModels, LogitsLossAndGradients) {
  auto model = whole_model();
  const Tensor ids = io_.tensor("in.input_ids");
  const int64_t batch = ids.size(0), length = ids.size(1), tokens = batch * length;
  std::vector<int64_t> labels(static_cast<size_t>(tokens), -100);
  const int64_t* given = io_.tensor("in.labels").data<int64_t>();
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t t = 0; t + 1 < length; ++t)
      labels[static_cast<size_t>(b * length + t)] = given[b * length + t + 1];

  Tape tape(ctx_);
  Tensor loss;
  {
    TapeScope scope(ctx_, &tape);
    Tensor hidden = hidden_states(*model);
    Tensor logits = model->logits(ctx_, hidden);
    EXPECT_TRUE(is_close(ctx_, "logits", logits.detach().slice(1, 0, bridge_.model_config().vocab_size),
                         io_.tensor("out.logits"), {.absolute = std::max(2e-5, noise("logits_max_abs"))}));
    Tensor losses = model->token_losses(ctx_, hidden, ctx_.from_vector(labels, {tokens}));
    loss = ops::scale(ctx_, ops::sum(ctx_, losses), 1.0 / static_cast<double>(batch * (length - 1)));
    EXPECT_TRUE(is_close(ctx_, "loss", loss, io_.tensor("out.loss"), {.absolute = 2e-6}));
  }
  tape.backward(ctx_, loss, ctx_.full(loss.shape(), loss.dtype(), 1));
  const Tolerance tolerance{.of_max = std::max(1e-4, noise("grad_max_rel_to_absmax"))};
  const auto theirs = testing::hf_gradients(ctx_, bridge_, model->parameters());
  for (const auto& [name, grad] : theirs)
    EXPECT_TRUE(is_close(name, grad.shape(), to_doubles(grad), to_doubles(grads_.tensor(name)), tolerance));
  for (const std::string& name : grads_.names())
    EXPECT_TRUE(theirs.contains(name) || name.ends_with("e_score_correction_bias")) << name;
}

TEST_P(HfModels, TrainingCurve) {
  const Tensor ids = io_.tensor("train.input_ids");
  Config config;
  config.model = bridge_.model_config();
  config.model.seq_length = ids.size(2) - 1;
  config.train.micro_batch_size = config.train.global_batch_size = ids.size(1);
  config.optimizer.adam_beta1 = 0.9, config.optimizer.adam_beta2 = 0.95, config.optimizer.adam_eps = 1e-8;
  config.optimizer.weight_decay = 0.1, config.optimizer.clip_grad = 1;
  RankTrainer trainer(ctx_, config, alone_, DType::F32);
  bridge_.load(ctx_, trainer.parameters());
  for (Parameter* parameter : trainer.parameters())
    for (const HfPart& part : bridge_.parts(parameter->name, parameter->shard.global_shape))
      if (const Json* decays = meta_.at("decayed_by_checkpoint_name").find(part.name))
        parameter->decays = decays->as_bool();
  const std::vector<double> all = to_doubles(ids), losses = to_doubles(io_.tensor("train.loss"));
  const auto step_size = static_cast<size_t>(ids.size(1) * ids.size(2));
  const double tolerance = std::max(2e-4, noise("curve_max_abs"));
  const Json* margins = meta_.find("router_margin_train_per_step");
  for (size_t step = 0; step < losses.size(); ++step) {
    std::vector<int64_t> tokens(all.begin() + static_cast<int64_t>(step * step_size),
                                all.begin() + static_cast<int64_t>((step + 1) * step_size));
    EXPECT_NEAR(trainer.step(ctx_, tokens, 1e-3).loss, losses[step], tolerance) << "step " << step;
    // A choice of experts that hangs on a rounding error may go either way from here on.
    if (margins && !(*margins)[step].is_null() && (*margins)[step].as_double() < 1e-5) break;
  }
}

// With a cache of keys and values, and without; the margin of a choice says whether rounding may change it.
TEST_P(HfModels, GreedyGeneration) {
  Config config;
  config.model = bridge_.model_config();
  Model model(config, alone_, DType::F32);
  for (Parameter* parameter : model.parameters()) parameter->allocate(ctx_, DType::F32);
  bridge_.load(ctx_, model.parameters());
  const Json& gaps = meta_.at("gen_top1_top2_gap");
  for (int i = 0; i < 3; ++i) {
    const std::string name = "gen." + std::to_string(i);
    const std::vector<double> ids = to_doubles(io_.tensor(name + ".ids"));
    const auto prompt = static_cast<int64_t>(to_doubles(io_.tensor(name + ".prompt_len"))[0]);
    const std::vector<int64_t> text(ids.begin(), ids.begin() + prompt);
    const Json& gap = gaps.at(std::to_string(i));
    for (bool use_cache : {true, false}) {
      const std::vector<int64_t> more =
          generate(ctx_, alone_.world(), model, text,
                   {.max_new_tokens = static_cast<int64_t>(ids.size()) - prompt, .use_cache = use_cache});
      for (size_t t = 0; t < more.size() && gap[t].as_double() >= 1e-4; ++t)
        EXPECT_EQ(more[t], static_cast<int64_t>(ids[static_cast<size_t>(prompt) + t]))
            << name << " token " << t << (use_cache ? " with a cache" : "");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dense, HfModels, ::testing::ValuesIn(testing::kDenseCases),
                         [](const auto& info) { return std::string(info.param); });
INSTANTIATE_TEST_SUITE_P(Mixtures, HfModels, ::testing::ValuesIn(testing::kMixtureCases),
                         [](const auto& info) { return std::string(info.param); });
INSTANTIATE_TEST_SUITE_P(Hybrids, HfModels, ::testing::ValuesIn(testing::kHybridCases),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace megatron
