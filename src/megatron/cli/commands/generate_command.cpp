#include "megatron/cli/commands/generate_command.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "megatron/base/error.h"
#include "megatron/base/json.h"
#include "megatron/base/progress.h"
#include "megatron/cli/common/model_arguments.h"
#include "megatron/cli/flags.h"
#include "megatron/inference/generate.h"
#include "megatron/training/setup/tokenizer_setup.h"

namespace megatron {
namespace {

constexpr CommandFlag kFlags[] = {
    {"--ckpt", 1, "a checkpoint, or what --save was given; --hf DIR: a Hugging Face model"},
    {"--prompt", 1, "the text to go on from, by the model's own tokenizer or --tokenizer-type"},
    {"--prompt-ids", 1, "the tokens to go on from: 1,2,3"},
    {"--images", 1, "FILE.safetensors[:PREFIX]: pixel_values (and image_grid_thw) of the images in the text"},
    {"--max-new-tokens", 1, "at most (64)"},
    {"--ignore-eos", 0, "go on past the token that ends a text"},
    {"--greedy", 0, "the likeliest token each time (the default)"},
    {"--temperature", 1, "draw instead, by --seed: 1 as the model says, less is bolder"},
    {"--top-k", 1, "draw from the k likeliest tokens"},
    {"--top-p", 1, "draw from the likeliest tokens that together have this probability"},
    {"--repetition-penalty", 1, "above 1: repeat less (what generation_config.json says, else 1)"},
    {"--json", 0, "one JSON document: {\"ids\": [new tokens]}"},
};

int64_t whole(const CommandLine& line, std::string_view flag, int64_t fallback) {
  return line.has(flag) ? parse_int("generate", flag, line.get(flag)) : fallback;
}

std::vector<int64_t> prompt_ids(const std::string& list, int64_t vocabulary) {
  std::vector<int64_t> ids;
  for (std::string_view word : comma_separated(list)) {
    ids.push_back(parse_int("generate", "--prompt-ids", word));
    if (ids.back() < 0 || ids.back() >= vocabulary)
      throw ConfigError(
          fmt::format("--prompt-ids: token {} is not in the vocabulary of {}", ids.back(), vocabulary));
  }
  if (ids.empty()) throw UsageError("generate: --prompt-ids names no token");
  return ids;
}

// The tokenizer that settings name, or that came with the model.
Tokenizer tokenizer_of(const ModelArguments& arguments) {
  if (arguments.config.tokenizer.tokenizer_type != TokenizerKind::none)
    return open_tokenizer(arguments.config.tokenizer);
  const std::string folder = arguments.source.tokenizer_folder();
  if (folder.empty())
    throw ConfigError(fmt::format(
        "generate --prompt: no tokenizer came with {}; give --tokenizer-type with its files, or --prompt-ids",
        arguments.source.path()));
  return make_tokenizer("HuggingFaceTokenizer", folder);
}

// With what its own settings put around a text, such as BOS.
std::vector<int64_t> encoded_prompt(const Tokenizer& tokenizer, const std::string& text) {
  const std::vector<TokenId> ids = tokenizer.encode(text, true);
  if (ids.empty()) throw UsageError("generate: --prompt is empty");
  return {ids.begin(), ids.end()};
}

}  // namespace

std::string generate_help() {
  return model_command_help(
      "usage: megatron generate (--hf DIR | --ckpt DIR) (--prompt TEXT | --prompt-ids 1,2,3) [options]\n"
      "\n"
      "Lets a model go on from a prompt, under any layout (--ranks 2 --tensor-model-parallel-size 2 ...), "
      "and\n"
      "prints the text, or the new tokens' numbers. A model with an encoder reads the prompt there and "
      "answers.\n",
      kFlags);
}

int run_generate(Invocation& invocation) {
  const CommandLine line = parse_command_line(invocation.args, kFlags);
  if (line.has("--prompt-ids") == line.has("--prompt"))
    throw UsageError("generate: say what to go on from, by --prompt TEXT or --prompt-ids 1,2,3");
  if (line.has("--greedy") && line.has("--temperature"))
    throw UsageError("generate: --greedy and --temperature contradict each other");
  const bool draws = line.has("--temperature") || line.has("--top-k") || line.has("--top-p");
  const ModelArguments arguments = model_arguments(invocation, line, "generate");
  std::optional<Tokenizer> tokenizer;
  if (line.has("--prompt")) tokenizer = tokenizer_of(arguments);
  const std::vector<int64_t> prompt =
      tokenizer ? encoded_prompt(*tokenizer, line.get("--prompt"))
                : prompt_ids(line.get("--prompt-ids"), arguments.config.model.vocab_size);
  if (const int64_t context = longest_context(arguments.config.model); std::ssize(prompt) > context)
    throw ConfigError(fmt::format("generate: the prompt has {} tokens, the model sees {} at most; shorten it",
                                  prompt.size(), context));
  if (arguments.config.model.masked_lm_head)
    throw ConfigError(
        fmt::format("{}: the model fills in masked tokens and does not go on from a prompt; "
                    "see megatron logits",
                    arguments.source.path()));
  const double temperature = parse_positive("generate", "--temperature", line.get("--temperature", "1"));
  GenerateOptions options{.max_new_tokens = whole(line, "--max-new-tokens", 64)};
  if (options.max_new_tokens < 1) throw UsageError("generate: --max-new-tokens needs at least 1");
  options.sampling = {.temperature = draws && !line.has("--greedy") ? temperature : 0,
                      .top_k = whole(line, "--top-k", 0),
                      .top_p = parse_positive("generate", "--top-p", line.get("--top-p", "1"), 1),
                      .seed = static_cast<uint64_t>(arguments.config.rng.seed),
                      .repetition_penalty = line.has("--repetition-penalty")
                                                ? parse_positive("generate", "--repetition-penalty",
                                                                 line.get("--repetition-penalty"))
                                                : arguments.source.repetition_penalty()};
  options.start_token = arguments.source.start_token();
  if (!line.has("--ignore-eos")) options.end_tokens = arguments.source.end_tokens();

  std::vector<int64_t> ids;
  run_on_ranks(
      arguments.config, arguments.place, invocation.log, [&](RankContext& ctx, const ProcessGroup& world) {
        LoadedModel loaded(ctx, world, arguments);
        GenerateOptions own = options;
        Images images;
        if (std::unique_ptr<ImageFile> pictures = image_file(line, arguments)) {
          images = pictures->next(ctx, prompt, arguments.dtype());
          if (!images.grids.empty()) own.images = &images;
        }
        std::unique_ptr<Progress> progress;
        int64_t count = 0;
        if (world.rank() == 0) {
          progress = std::make_unique<Progress>(invocation.log, "generating", options.max_new_tokens);
          own.on_token = [&](int64_t) { progress->update(++count, "tokens"); };
        }
        std::vector<int64_t> added = generate(ctx, world, loaded.model(), prompt, own);
        if (world.rank() == 0) ids = std::move(added);
      });
  if (arguments.place.process != 0) return 0;
  const std::string written =
      tokenizer ? tokenizer->decode(std::vector<TokenId>(ids.begin(), ids.end()), true) : "";
  if (line.has("--json")) {
    Json document = Json::object();
    Json& list = document["ids"] = Json::array();
    for (int64_t id : ids) list.push_back(id);
    if (tokenizer) document["text"] = written;
    fmt::print(invocation.out, "{}\n", document.dump());
  } else if (tokenizer) {
    fmt::print(invocation.out, "{}{}\n", line.get("--prompt"), written);
  } else {
    std::string text;
    for (int64_t id : ids) text += (text.empty() ? "" : ",") + std::to_string(id);
    fmt::print(invocation.out, "{}\n", text);
  }
  return 0;
}

}  // namespace megatron
