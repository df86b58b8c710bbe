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
    MicroBatch micro{.ids = to_device(ctx_, ids)};
    micro.seq = model_.sequences(ctx_, batch.rows(), length);
    micro.extra["token_types"] = to_device(ctx_, batch.ids("token_type_ids"));
    micro.extra["padding_mask"] = padding_mask(ctx_, batch.lengths(), length);
    return model_.run_stage(ctx_, {}, micro)[0];
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

  // The source of a batch, its first `rows` rows alone, and what the decoder reads.
  MicroBatch micro_batch(const Batch& batch, int64_t rows, const std::vector<int64_t>& text) {
    std::vector<int64_t> ids = batch.ids("input_ids"), lengths = batch.lengths();
    const int64_t length = static_cast<int64_t>(ids.size()) / batch.rows();
    ids.resize(static_cast<size_t>(rows * length));
    lengths.resize(static_cast<size_t>(rows));
    MicroBatch micro{.ids = to_device(ctx_, text)};
    micro.seq = model_.sequences(ctx_, {.rows = rows, .length = std::ssize(text) / rows, .documents = {}});
    micro.extra["encoder_ids"] = ctx_.from_vector(ids, {rows, length});
    micro.extra["encoder_mask"] = padding_mask(ctx_, lengths, length);
    return micro;
  }
  Tensor hidden(const Batch& batch) {
    const MicroBatch micro = micro_batch(batch, batch.rows(), batch.ids("decoder_input_ids"));
    return model_.run_stage(ctx_, {}, micro)[0];
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
  Tensor encoded;
  const std::vector<double> expected = to_doubles(io_.tensor("gen.0.ids"));
  const Json& gap = meta_.at("gen_top1_top2_gap").at("0");
  std::vector<int64_t> text = {static_cast<int64_t>(expected[0])};  // what a decoder starts from
  for (size_t t = 1; t < expected.size() && gap[t - 1].as_double() >= 1e-4; ++t) {
    const auto length = static_cast<int64_t>(text.size());
    MicroBatch micro = micro_batch(batch, 1, text);
    micro.encoded = &encoded;
    const Tensor hidden = model_.run_stage(ctx_, {}, micro)[0];
    const auto logits = to_doubles(ctx_, model_.logits(ctx_, hidden.slice(0, length - 1, length)));
    const auto end = logits.begin() + bridge_.model_config().vocab_size;
    text.push_back(std::max_element(logits.begin(), end) - logits.begin());
    EXPECT_EQ(text.back(), static_cast<int64_t>(expected[t])) << "token " << t;
  }
}

}  // namespace
}  // namespace megatron
