#include "megatron/inference/generate.h"

#include <algorithm>
#include <optional>

#include "megatron/models/whole_model.h"
#include "megatron/nn/kv_cache.h"

namespace megatron {
namespace {

// The first rank chooses, so that rounding that differs between replicas cannot lead them apart.
int64_t choose(RankContext& ctx, const ProcessGroup& world, const Tensor& logits, const Sampling& sampling,
               int64_t number, std::span<const int64_t> text) {
  Tensor chosen = ctx.zeros({1}, DType::I64);
  if (world.rank() == 0) {
    Tensor wide = ctx.empty(logits.shape(), DType::F64);
    ctx.kernels->copy(ctx.kernel_context(), {logits, wide});
    const double uniform = Philox::at({sampling.seed, 0}, static_cast<uint64_t>(number)).uniform(0);
    std::vector<double> values = ctx.to_vector<double>(wide);
    penalise_repetition(values, text, sampling.repetition_penalty);
    chosen = ctx.from_vector(std::vector<int64_t>{sample_token(values, sampling, uniform)}, {1});
  }
  world.broadcast(chosen, 0).wait();
  const int64_t token = ctx.to_vector<int64_t>(chosen)[0];
  world.require_running();
  return token;
}

// The decoder's text, from its first token on.
std::vector<int64_t> answer(RankContext& ctx, const ProcessGroup& world, RankModel& model,
                            std::span<const int64_t> prompt, const GenerateOptions& options) {
  std::vector<int64_t> text = {options.start_token};
  Tensor encoded;
  for (int64_t i = 0; i < options.max_new_tokens; ++i) {
    const Tensor logits =
        model.logits(ctx, {.tokens = prompt, .last_only = true, .decoder_tokens = text, .encoded = &encoded});
    text.push_back(choose(ctx, world, logits, options.sampling, i, text));
    if (options.on_token) options.on_token(text.back());
    if (std::ranges::find(options.end_tokens, text.back()) != options.end_tokens.end()) break;
  }
  return {text.begin() + 1, text.end()};
}

}  // namespace

int64_t longest_context(const ModelConfig& model) {
  return std::max(model.seq_length, model.max_position_embeddings);
}

std::vector<int64_t> generate(RankContext& ctx, const ProcessGroup& world, RankModel& model,
                              std::span<const int64_t> prompt, const GenerateOptions& options) {
  require(!prompt.empty(), "generate: the prompt is empty");
  if (is_encoder_decoder(model.config())) return answer(ctx, world, model, prompt, options);
  const int64_t context = longest_context(model.config());
  const bool caches = options.use_cache && !options.images && model.can_cache(ctx.device);
  std::vector<int64_t> text(prompt.begin(), prompt.end()), added;
  auto length = [&] { return static_cast<int64_t>(text.size()); };

  int64_t begin = std::max<int64_t>(0, length() - context);  // of what the model sees
  std::optional<KvCache> cache;
  for (int64_t i = 0; i < options.max_new_tokens; ++i) {
    if (length() - begin > context) {  // full: go on from the later half
      begin = length() - std::max<int64_t>(1, context / 2);
      cache.reset();
    }
    if (caches && !cache) cache.emplace(std::min(context, length() - begin + options.max_new_tokens - i));
    const int64_t seen = cache ? begin + cache->length() : begin;
    Tensor logits =
        model.logits(ctx, {.tokens = std::span<const int64_t>(text).subspan(static_cast<size_t>(seen)),
                           .last_only = true,
                           .cache = cache ? &*cache : nullptr,
                           .images = options.images});
    const int64_t token = choose(ctx, world, logits, options.sampling, i, text);
    text.push_back(token);
    added.push_back(token);
    if (options.on_token) options.on_token(token);
    if (std::ranges::find(options.end_tokens, token) != options.end_tokens.end()) break;
  }
  return added;
}

}  // namespace megatron
