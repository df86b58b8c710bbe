#include "megatron/inference/generate.h"

#include <algorithm>

#include "megatron/inference/engine.h"
#include "megatron/models/whole_model.h"

namespace megatron {
namespace {

// The first rank chooses, so that rounding that differs between replicas cannot lead them apart.
int64_t choose(RankContext& ctx, const ProcessGroup& world, const Tensor& logits, Sampler& sampler) {
  Tensor chosen = ctx.zeros({1}, DType::I64);
  if (world.rank() == 0) {
    Tensor single = ctx.empty(logits.shape(), DType::F32);
    ctx.kernels->copy(ctx.kernel_context(), {logits, single});
    std::vector<float> values = ctx.to_vector<float>(single);
    chosen = ctx.from_vector(std::vector<int64_t>{sampler.choose(values).id}, {1});
  }
  world.broadcast(chosen, 0).wait();
  const int64_t token = ctx.to_vector<int64_t>(chosen)[0];
  world.require_running();
  sampler.push(token);
  return token;
}

bool ends(const GenerateOptions& options, int64_t token) {
  return std::ranges::find(options.end_tokens, token) != options.end_tokens.end();
}

// The decoder's text, from its first token on.
std::vector<int64_t> answer(RankContext& ctx, const ProcessGroup& world, Model& model,
                            std::span<const int64_t> prompt, const GenerateOptions& options) {
  std::vector<int64_t> text = {options.start_token};
  Tensor encoded;
  Sampler sampler(options.sampling, text);
  for (int64_t i = 0; i < options.max_new_tokens; ++i) {
    const Tensor logits =
        model.logits(ctx, {.tokens = prompt, .last_only = true, .decoder_tokens = text, .encoded = &encoded});
    text.push_back(choose(ctx, world, logits, sampler));
    if (options.on_token && world.rank() == 0) options.on_token(text.back());
    if (ends(options, text.back())) break;
  }
  return {text.begin() + 1, text.end()};
}

// What a model sees of a text that is longer than its context: from the later half on.
int64_t first_seen(int64_t length, int64_t begin, int64_t context) {
  return length - begin > context ? length - std::max<int64_t>(1, context / 2) : begin;
}

// Every token reads all before it again.
std::vector<int64_t> without_cache(RankContext& ctx, const ProcessGroup& world, Model& model,
                                   std::span<const int64_t> prompt, const GenerateOptions& options) {
  const int64_t context = longest_context(model.config());
  std::vector<int64_t> text(prompt.begin(), prompt.end());
  int64_t begin = std::max<int64_t>(0, std::ssize(text) - context);
  Sampler sampler(options.sampling, prompt.subspan(static_cast<size_t>(begin)));
  for (int64_t i = 0; i < options.max_new_tokens; ++i) {
    const int64_t moved = first_seen(std::ssize(text), begin, context);
    const auto seen = std::span<const int64_t>(text).subspan(static_cast<size_t>(moved));
    if (moved != begin) {  // the context is full: other numbers are drawn
      Sampling sampling = sampler.sampling();
      ++sampling.seed;
      sampler = Sampler(std::move(sampling), seen);
      begin = moved;
    }
    const Tensor logits = model.logits(ctx, {.tokens = seen, .last_only = true, .images = options.images});
    text.push_back(choose(ctx, world, logits, sampler));
    if (options.on_token && world.rank() == 0) options.on_token(text.back());
    if (ends(options, text.back())) break;
  }
  return {text.begin() + std::ssize(prompt), text.end()};
}

// The first rank's tokens on every rank.
std::vector<int64_t> everywhere(RankContext& ctx, const ProcessGroup& world, std::vector<int64_t> tokens) {
  Tensor count = ctx.from_vector(std::vector<int64_t>{std::ssize(tokens)}, {1});
  world.broadcast(count, 0).wait();
  tokens.resize(static_cast<size_t>(ctx.to_vector<int64_t>(count)[0]));
  world.require_running();
  if (tokens.empty()) return tokens;
  Tensor all = ctx.from_vector(tokens, {std::ssize(tokens)});
  world.broadcast(all, 0).wait();
  tokens = ctx.to_vector<int64_t>(all);
  world.require_running();
  return tokens;
}

}  // namespace

int64_t longest_context(const ModelConfig& model) {
  return std::max(model.seq_length, model.max_position_embeddings);
}

std::vector<int64_t> generate(RankContext& ctx, const ProcessGroup& world, Model& model,
                              std::span<const int64_t> prompt, const GenerateOptions& options) {
  require(!prompt.empty(), "generate: the prompt is empty");
  if (is_encoder_decoder(model.config())) return answer(ctx, world, model, prompt, options);
  if (!options.use_cache || options.images || !model.can_decode())
    return without_cache(ctx, world, model, prompt, options);
  const int64_t context =
      std::min(longest_context(model.config()), std::ssize(prompt) + options.max_new_tokens);
  EngineOptions alone{.max_requests = 1, .max_length = context};
  alone.speculative_tokens = options.speculative_tokens;
  alone.cuda_graphs = options.cuda_graphs;
  alone.cache_bytes = std::numeric_limits<int64_t>::max() / 2;  // what one sequence needs
  Engine engine(ctx, world, model, alone);
  std::vector<int64_t> text(prompt.begin(), prompt.end());
  Request request{.prompt = {}, .sampling = options.sampling, .end_tokens = options.end_tokens};
  int64_t begin = std::max<int64_t>(0, std::ssize(text) - context);
  while (true) {
    begin = first_seen(std::ssize(text), begin, context);
    request.prompt = {text.begin() + begin, text.end()};
    request.max_tokens = options.max_new_tokens - (std::ssize(text) - std::ssize(prompt));
    std::vector<int64_t> added;
    if (world.rank() == 0)
      engine.submit(request, [&](const RequestUpdate& update) {
        require(update.finish != FinishReason::failed,
                "generate: no token can be chosen; the model's output is not finite");
        for (const TokenChoice& choice : update.tokens) {
          added.push_back(choice.id);
          if (options.on_token) options.on_token(choice.id);
        }
      });
    while (engine.step()) {
    }
    added = everywhere(ctx, world, std::move(added));
    text.insert(text.end(), added.begin(), added.end());
    if (added.empty() || ends(options, added.back()) ||
        std::ssize(text) - std::ssize(prompt) >= options.max_new_tokens)
      break;
    ++request.sampling.seed;  // the context is full: other numbers are drawn
  }
  return {text.begin() + std::ssize(prompt), text.end()};
}

}  // namespace megatron
