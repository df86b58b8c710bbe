#include "megatron/inference/generate.h"

#include <algorithm>
#include <cmath>

namespace megatron {

int64_t sample_token(std::span<const double> logits, double temperature, double uniform) {
  require(!logits.empty(), "generate: there are no logits to choose from");
  auto best = std::max_element(logits.begin(), logits.end());
  if (temperature <= 0) return best - logits.begin();
  std::vector<double> cumulative(logits.size());
  double sum = 0;
  for (size_t i = 0; i < logits.size(); ++i)
    cumulative[i] = sum += std::exp((logits[i] - *best) / temperature);
  auto chosen = std::upper_bound(cumulative.begin(), cumulative.end(), uniform * sum);
  return std::min<int64_t>(chosen - cumulative.begin(), static_cast<int64_t>(logits.size()) - 1);
}

std::vector<int64_t> generate(RankContext& ctx, GptModel& model, std::span<const int64_t> prompt,
                              const GenerateOptions& options) {
  require(!prompt.empty(), "generate: the prompt is empty");
  require(model.slice().embedding && model.slice().head,
          "generate: this rank holds only a part of the model");
  NoGrad no_grad(ctx);
  size_t context = static_cast<size_t>(options.context ? options.context : model.config().seq_length);
  std::vector<int64_t> text(prompt.begin(), prompt.end());
  for (int64_t i = 0; i < options.max_new_tokens; ++i) {
    size_t length = std::min(context, text.size());
    std::vector<int64_t> window(text.end() - static_cast<int64_t>(length), text.end());
    SeqInfo seq = model.sequences(ctx, 1, static_cast<int64_t>(length));
    Tensor hidden = model.forward(ctx, ctx.from_vector(window, {static_cast<int64_t>(length)}), seq);
    Tensor last = hidden.slice(0, static_cast<int64_t>(length) - 1, static_cast<int64_t>(length));
    Tensor logits = model.logits(ctx, last), wide = ctx.empty(logits.shape(), DType::F64);
    ctx.kernels->copy(ctx.kernel_context(), {logits, wide});
    auto values = ctx.to_vector<double>(wide);
    values.resize(static_cast<size_t>(model.config().vocab_size));  // padding is never chosen
    double uniform = Philox::at({options.seed, 0}, static_cast<uint64_t>(i)).uniform(0);
    text.push_back(sample_token(values, options.temperature, uniform));
  }
  return {text.begin() + static_cast<int64_t>(prompt.size()), text.end()};
}

}  // namespace megatron
