#include "golden/hf_models/direct_case.h"
#include "megatron/models/vision_language.h"

// Hugging Face's decoders with a vision tower: logits, losses, gradients, a training curve and greedy text.
namespace megatron {
namespace {

using testing::Batch;
using testing::DirectCase;
using testing::to_doubles;

class Vision : public DirectCase, public ::testing::WithParamInterface<const char*> {
 protected:
  Vision() : DirectCase(GetParam()) { load(model_); }

  // All images of the file, or the first of them. They are the same in training.
  Images images(bool first_alone = false) {
    Tensor pixels = io_.tensor("in.pixel_values");
    Images result;
    if (pixels.rank() == 2) {  // patches already
      const std::vector<double> grids = to_doubles(io_.tensor("in.image_grid_thw"));
      for (size_t i = 0; i < grids.size(); i += 3)
        result.grids.push_back({static_cast<int64_t>(grids[i]), static_cast<int64_t>(grids[i + 1]),
                                static_cast<int64_t>(grids[i + 2])});
    } else {
      const int64_t count = pixels.size(0), patch = bridge_.vision_config()->vision_patch_size,
                    side = pixels.size(2) / patch;
      result.grids.assign(static_cast<size_t>(count), {1, side, side});
      pixels = patches(pixels, patch);
    }
    if (first_alone) {
      result.grids.resize(1);
      pixels = pixels.slice(0, 0, result.grids[0].patches());
    }
    result.pixels = testing::to_device(ctx_, pixels);
    return result;
  }

  // [images, channels, height, width] as rows of one patch each, channel by channel.
  static Tensor patches(const Tensor& pixels, int64_t patch) {
    const int64_t images = pixels.size(0), channels = pixels.size(1), side = pixels.size(2) / patch;
    Tensor rows = host_tensor({images * side * side, channels * patch * patch}, DType::F32);
    const float* from = pixels.data<float>();
    float* to = rows.data<float>();
    for (int64_t row = 0; row < rows.size(0); ++row)
      for (int64_t k = 0; k < rows.size(1); ++k) {
        const int64_t image = row / (side * side), top = row / side % side * patch, left = row % side * patch;
        const int64_t channel = k / (patch * patch), y = top + k / patch % patch, x = left + k % patch;
        *to++ = from[((image * channels + channel) * side * patch + y) * side * patch + x];
      }
    return rows;
  }

  std::vector<int64_t> labels_of(const Batch& batch) const override {
    std::vector<int64_t> labels = batch.ids("labels");
    const size_t length = labels.size() / static_cast<size_t>(batch.rows());
    for (size_t i = 0; i < labels.size(); ++i) labels[i] = (i + 1) % length == 0 ? -100 : labels[i + 1];
    return labels;
  }

  Tensor hidden(const std::vector<int64_t>& ids, int64_t rows, const Images& images) {
    const auto tokens = static_cast<int64_t>(ids.size());
    MicroBatch micro{.ids = ctx_.from_vector(ids, {tokens})};
    micro.seq = model_.sequences(ctx_, rows, tokens / rows);
    add_images(ctx_, model_.config(), ids, rows, images.grids, DType::F32, micro.seq);
    put_images(ctx_, model_.config(), ids, {}, images, micro);
    return model_.run_stage(ctx_, {}, micro)[0];
  }
  Case self() {
    return {&model_,
            [this](const Batch& batch) { return hidden(batch.ids("input_ids"), batch.rows(), images()); },
            [this](const Tensor& x) { return model_.logits(ctx_, x); },
            [this](const Tensor& x, const Tensor& labels) { return model_.token_losses(ctx_, x, labels); }};
  }

  GptModel model_{with_tower(bridge_.model_config(), *bridge_.vision_config()),
                  ModelSlice{0, bridge_.model_config().num_layers}, ModelParallel{}, DType::F32};
};

TEST_P(Vision, LogitsLossAndGradients) { check_gradients(self()); }
TEST_P(Vision, TrainingCurve) { check_curve(self()); }

TEST_P(Vision, GreedyGeneration) {
  NoGrad no_grad(ctx_);
  const std::vector<double> expected = to_doubles(io_.tensor("gen.0.ids"));
  const auto prompt = static_cast<int64_t>(to_doubles(io_.tensor("gen.0.prompt_len"))[0]);
  const Json& gap = meta_.at("gen_top1_top2_gap").at("0");
  const Images first = images(true);
  std::vector<int64_t> text(expected.begin(), expected.begin() + prompt);
  for (size_t t = 0; text.size() < expected.size() && gap[t].as_double() >= 1e-4; ++t) {
    const auto length = static_cast<int64_t>(text.size());
    const Tensor states = hidden(text, 1, first);
    const auto logits = to_doubles(ctx_, model_.logits(ctx_, states.slice(0, length - 1, length)));
    const auto end = logits.begin() + bridge_.model_config().vocab_size;
    text.push_back(std::max_element(logits.begin(), end) - logits.begin());
    EXPECT_EQ(text.back(), static_cast<int64_t>(expected[text.size() - 1])) << "token " << t;
  }
}

INSTANTIATE_TEST_SUITE_P(Towers, Vision, ::testing::Values("qwen2_vl", "qwen2_5_vl", "gemma3_mm"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace megatron
