#include "golden/hf_models/direct_case.h"
#include "megatron/models/gpt.h"
#include "megatron/models/t5.h"

// Hugging Face's BERT and T5: logits, losses, gradients, a training curve and T5's greedy text.
namespace megatron {
namespace {

using testing::Batch;
using testing::DirectCase;
using testing::to_device;
using testing::to_doubles;

class Bert : public DirectCase {
 protected:
  Bert() : DirectCase("bert") { load(model_); }

  Tensor hidden(const Batch& batch) {
    const std::vector<int64_t> ids = batch.ids("input_ids");
    const int64_t length = static_cast<int64_t>(ids.size()) / batch.rows();
    SeqInfo seq = model_.sequences(ctx_, batch.rows(), length);
    seq.token_types = to_device(ctx_, batch.ids("token_type_ids"));
    seq.attention_bias = padding_bias(ctx_, batch.lengths(), length, length, DType::F32);
    return model_.forward(ctx_, to_device(ctx_, ids), seq);
  }
  Case self() {
    return {&model_, [this](const Batch& batch) { return hidden(batch); },
            [this](const Tensor& x) { return model_.logits(ctx_, x); },
            [this](const Tensor& x, const Tensor& labels) { return model_.token_losses(ctx_, x, labels); }};
  }

  GptModel model_{bridge_.model_config(), ModelSlice{0, bridge_.model_config().num_layers}, ModelParallel{},
                  DType::F32};
};

TEST_F(Bert, LogitsLossAndGradients) { check_gradients(self()); }
TEST_F(Bert, TrainingCurve) { check_curve(self()); }

class T5 : public DirectCase {
 protected:
  T5() : DirectCase("t5_gated") { load(model_); }

  T5Model::Source source(const Batch& batch) {
    const std::vector<int64_t> ids = batch.ids("input_ids");
    return {.ids = to_device(ctx_, ids),
            .batch = batch.rows(),
            .length = static_cast<int64_t>(ids.size()) / batch.rows(),
            .lengths = batch.lengths()};
  }
  Tensor hidden(const Batch& batch) {
    const T5Model::Source from = source(batch);
    const std::vector<int64_t> ids = batch.ids("decoder_input_ids");
    return model_.decode(ctx_, to_device(ctx_, ids), static_cast<int64_t>(ids.size()) / batch.rows(), from,
                         model_.encode(ctx_, from));
  }
  Case self() {
    return {&model_, [this](const Batch& batch) { return hidden(batch); },
            [this](const Tensor& x) { return model_.logits(ctx_, x); },
            [this](const Tensor& x, const Tensor& labels) { return model_.token_losses(ctx_, x, labels); }};
  }

  T5Model model_{bridge_.model_config(), ModelParallel{}, DType::F32};
};

TEST_F(T5, LogitsLossAndGradients) { check_gradients(self()); }
TEST_F(T5, TrainingCurve) { check_curve(self()); }

TEST_F(T5, GreedyGeneration) {
  NoGrad no_grad(ctx_);
  const Batch batch(io_, "in.");
  T5Model::Source from = source(batch);
  from.ids = from.ids.slice(0, 0, from.length);  // the first row alone
  from.batch = 1;
  from.lengths.resize(1);
  const Tensor states = model_.encode(ctx_, from);
  const std::vector<double> expected = to_doubles(io_.tensor("gen.0.ids"));
  const Json& gap = meta_.at("gen_top1_top2_gap").at("0");
  std::vector<int64_t> text = {static_cast<int64_t>(expected[0])};  // what a decoder starts from
  for (size_t t = 1; t < expected.size() && gap[t - 1].as_double() >= 1e-4; ++t) {
    const auto length = static_cast<int64_t>(text.size());
    Tensor hidden = model_.decode(ctx_, to_device(ctx_, text), length, from, states);
    const auto logits = to_doubles(ctx_, model_.logits(ctx_, hidden.slice(0, length - 1, length)));
    const auto end = logits.begin() + bridge_.model_config().vocab_size;
    text.push_back(std::max_element(logits.begin(), end) - logits.begin());
    EXPECT_EQ(text.back(), static_cast<int64_t>(expected[t])) << "token " << t;
  }
}

}  // namespace
}  // namespace megatron
