#pragma once

#include <gtest/gtest.h>

#include <algorithm>

#include "golden/hf_models/gradients.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/reduce.h"
#include "megatron/optimizer/adam.h"
#include "megatron/optimizer/grad_norm.h"
#include "support/golden.h"

// Golden models that no trainer runs yet: their logits, losses, gradients and curves, step by step.
namespace megatron::testing {

// One batch of a file, under names that begin with `prefix`; `step` of a training curve.
struct Batch {
  Batch(const SafetensorsFile& io, const std::string& prefix, int64_t step = -1)
      : io(io), prefix(prefix), step(step) {}

  std::vector<int64_t> ids(const std::string& name) const {
    Tensor tensor = io.tensor(prefix + name);
    if (step >= 0) tensor = tensor.select(0, step);
    const std::vector<double> values = to_doubles(tensor);
    return {values.begin(), values.end()};
  }
  int64_t rows() const { return io.tensor(prefix + "labels").size(step >= 0 ? 1 : 0); }
  // How many of each row's tokens are real.
  std::vector<int64_t> lengths() const {
    const std::vector<int64_t> mask = ids("attention_mask");
    const auto length = static_cast<int64_t>(mask.size()) / rows();
    std::vector<int64_t> counts;
    for (int64_t row = 0; row < rows(); ++row)
      counts.push_back(std::count(mask.begin() + row * length, mask.begin() + (row + 1) * length, 1));
    return counts;
  }

  const SafetensorsFile& io;
  std::string prefix;
  int64_t step;
};

inline Tensor to_device(RankContext& ctx, const std::vector<int64_t>& ids) {
  return ctx.from_vector(ids, {static_cast<int64_t>(ids.size())});
}

// What such models have in common: from a batch to hidden states, logits and losses.
class DirectCase : public ::testing::Test {
 protected:
  struct Case {
    Module* model;
    std::function<Tensor(const Batch&)> hidden;
    std::function<Tensor(const Tensor&)> logits;
    std::function<Tensor(const Tensor& hidden, const Tensor& labels)> losses;
  };

  explicit DirectCase(const char* name)
      : name_(name),
        bridge_(path("model")),
        io_(path("io.safetensors")),
        meta_(Json::read(path("meta.json"))) {}

  std::string path(const std::string& file) const { return golden_path("hf_models", name_ + "/" + file); }
  double noise(const char* what) const { return 10 * meta_.at("fp32_vs_fp64").at(what).as_double(); }

  void load(Module& model) {
    for (Parameter* parameter : model.parameters()) {
      parameter->allocate(ctx_, DType::F32);
      parameter->allocate_gradient(ctx_);
    }
    bridge_.load(ctx_, model.parameters());
  }

  // The labels of a batch: its own, or those of the next token.
  virtual std::vector<int64_t> labels_of(const Batch& batch) const { return batch.ids("labels"); }

  Tensor mean_loss(const Case& c, const Tensor& hidden, const Batch& batch) {
    const std::vector<int64_t> labels = labels_of(batch);
    const auto counted =
        std::count_if(labels.begin(), labels.end(), [](int64_t label) { return label != -100; });
    return ops::scale(ctx_, ops::sum(ctx_, c.losses(hidden, to_device(ctx_, labels))),
                      1.0 / static_cast<double>(counted));
  }

  double backward(const Case& c, const Batch& batch, Tensor* logits = nullptr) {
    Tape tape(ctx_);
    Tensor loss;
    {
      TapeScope scope(ctx_, &tape);
      Tensor hidden = c.hidden(batch);
      if (logits) *logits = c.logits(hidden).detach();
      loss = mean_loss(c, hidden, batch);
    }
    tape.backward(ctx_, loss, ctx_.full(loss.shape(), loss.dtype(), 1));
    return to_doubles(ctx_, loss)[0];
  }

  void check_gradients(const Case& c) {
    const Batch batch(io_, "in.");
    Tensor logits;
    const double loss = backward(c, batch, &logits);
    EXPECT_TRUE(is_close(ctx_, "logits", logits.slice(1, 0, bridge_.model_config().vocab_size),
                         io_.tensor("out.logits"), {.absolute = std::max(2e-5, noise("logits_max_abs"))}));
    EXPECT_NEAR(loss, to_doubles(io_.tensor("out.loss"))[0], 2e-6);
    const SafetensorsFile grads(path("grads.safetensors"));
    const auto theirs = hf_gradients(ctx_, bridge_, c.model->parameters());
    // A key's bias moves all scores of a query alike: its gradient is rounding noise.
    const double most = std::min(1e-3, std::max(1e-4, noise("grad_max_rel_to_absmax")));
    for (const auto& [name, grad] : theirs)
      EXPECT_TRUE(
          is_close(name, grad.shape(), to_doubles(grad), to_doubles(grads.tensor(name)),
                   {.absolute = name.ends_with("key.bias") || name.ends_with("k_proj.bias") ? 1e-7 : 0,
                    .of_max = most}));
    for (const std::string& name : grads.names()) EXPECT_TRUE(theirs.contains(name)) << name;
  }

  void check_curve(const Case& c) {
    const std::vector<double> expected = to_doubles(io_.tensor("train.loss"));
    const ParallelContext alone;
    alone.world().attach(ctx_);
    Adam adam(ctx_, whole_slices(c.model->parameters()),
              {.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1});
    for (size_t step = 0; step < expected.size(); ++step) {
      for (Parameter* parameter : c.model->parameters()) parameter->accumulator.start_step();
      const double loss = backward(c, Batch(io_, "train.", static_cast<int64_t>(step)));
      EXPECT_NEAR(loss, expected[step], std::max(2e-4, noise("curve_max_abs"))) << "step " << step;
      adam.step(ctx_, 1e-3, clip_coefficient(ctx_, gradient_norm(ctx_, adam.slices(), alone, false), 1));
    }
  }

  RankContext ctx_{testing::test_device()};
  std::string name_;
  AutoBridge bridge_;
  SafetensorsFile io_;
  Json meta_;
};

}  // namespace megatron::testing
