#include "megatron/cli/commands.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "megatron/base/atomic_file.h"
#include "megatron/base/error.h"
#include "megatron/base/progress.h"
#include "megatron/cli/commands/generate_output.h"
#include "megatron/cli/common/model_arguments.h"
#include "megatron/cli/flags.h"
#include "megatron/datasets/images/image_text.h"
#include "megatron/inference/engine.h"
#include "megatron/inference/generate.h"
#include "megatron/models/whole_model.h"
#include "megatron/training/setup/tokenizer_setup.h"
#include "megatron/transformer/layer_pattern.h"

namespace megatron {
namespace {

constexpr bool kNoEffect = true;

constexpr CommandFlag kFlags[] = {
    {"--ckpt", 1, "a checkpoint, or what --save was given; --load the same; --hf DIR: a Hugging Face model"},
    {"--prompt", 1, "the text to go on from, by the model's own tokenizer or --tokenizer-type"},
    {"--prompt-ids", 1, "the tokens to go on from: 1,2,3"},
    {"--prompts", -1, "several texts, which run in one batch"},
    {"--prompt-file", 1, "one prompt a line: text, a JSON string, {\"text\": ...} or tokens"},
    {"--prompt-file-num-truncate", 1, "lines of the file that are read (all)"},
    {"--sample-input-file", 1, "the same as --prompt-file"},
    {"--num-samples", 1, "that many texts from their beginning, drawn apart; 0: prompts are given"},
    {"--images", -1, "PNG or JPEG files, at <image> in the text or before it; or FILE.safetensors[:PREFIX]"},
    {"--max-new-tokens", 1, "at most (64)"},
    {"--num-tokens-to-generate", 1, "the same"},
    {"--out-seq-length", 1, "the same"},
    {"--ignore-eos", 0, "go on past the token that ends a text"},
    {"--termination-id", 1, "the token that ends a text instead of the model's; -1: none"},
    {"--stop-words", -1, "texts that end an answer, by their tokens, and are left out of it"},
    {"--greedy", 0, "the likeliest token each time (the default)"},
    {"--temperature", 1, "draw, by --seed: 1 as the model says, lower bolder, 0 greedy"},
    {"--top-k", 1, "draw from the k likeliest tokens (--top_k too)"},
    {"--top_k", 1, "the same"},
    {"--top-p", 1, "draw from the likeliest tokens that together have this probability (--top_p too)"},
    {"--top_p", 1, "the same; 0: of all"},
    {"--repetition-penalty", 1, "above 1: repeat less (what generation_config.json says, else 1)"},
    {"--quantization", 1, "of weights: int8, on the CPU int4, on a GPU fp8 [none]"},
    {"--kv-cache-dtype", 1, "auto: as the model, or fp8: e4m3 with scales [auto]"},
    {"--no-cuda-graphs", 0, "on a GPU, launch every kernel by itself"},
    {"--top-n-logprobs", 1, "with each token the N likeliest and their log-probabilities"},
    {"--output-path", 1, "also write the answers into this JSON file"},
    {"--sample-output-file", 1, "the same"},
    {"--genfile", 1, "the same"},
    {"--json", 0, "one JSON object a line: {\"ids\": [new tokens], \"text\", \"finish_reason\", ...}"},
    {"--inference-repeat-n", 1, "each prompt is answered once", kNoEffect},
    {"--incoming-requests-per-sec", 1, "all prompts are there at once", kNoEffect},
    {"--incoming-requests-duration", 1, "all prompts are there at once", kNoEffect},
    {"--incoming-requests-per-step", 1, "all prompts are there at once", kNoEffect},
    {"--output-every-n-results", 1, "every answer is written", kNoEffect},
    {"--suspend-resume-interval", 1, "the engine is not suspended", kNoEffect},
    {"--suspend-timeout", 1, "the engine is not suspended", kNoEffect},
    {"--rl-kv-cache-management-mode", 1, "the engine is not suspended", kNoEffect},
    {"--rl-persist-cuda-graphs", 0, "decode steps are CUDA graphs wherever that is possible", kNoEffect},
    {"--no-rl-persist-cuda-graphs", 0, "decode steps are CUDA graphs wherever that is possible", kNoEffect},
    {"--no-record-throughput", 0, "--output-path holds answers alone", kNoEffect},
    {"--inference-ckpt-non-strict", 0, "a weight that is missing is an error", kNoEffect},
    {"--model-provider", 1, "the settings say what the model is", kNoEffect},
    {"--use-legacy-static-engine", 0, "there is one engine", kNoEffect},
    {"--use-coordinator", 0, "the first rank schedules for all", kNoEffect},
    {"--coordinator-host", 1, "the first rank schedules for all", kNoEffect},
    {"--coordinator-port", 1, "the first rank schedules for all", kNoEffect},
    {"--coordinator-schedule-output-path", 1, "the first rank schedules for all", kNoEffect},
    {"--async-mode", 0, "prompts are always answered together", kNoEffect},
    {"--stream", 0, "answers are printed whole", kNoEffect},
    {"--max-batch-size", 1, "as many requests run as the cache holds", kNoEffect},
    {"--batch-boundaries", 1, "prompts join as soon as there is room", kNoEffect},
    {"--drain-between-batches", 0, "prompts join as soon as there is room", kNoEffect},
    {"--output-request-events", 0, "requests have no trace", kNoEffect},
    {"--throughput-check-only", 0, "answers are always written", kNoEffect},
};

int64_t whole(const CommandLine& line, std::string_view flag, int64_t fallback) {
  return line.has(flag) ? parse_int("generate", flag, line.get(flag)) : fallback;
}

// The value of a flag that has two names.
std::string either(const CommandLine& line, std::string_view name, std::string_view other,
                   std::string_view fallback) {
  return line.get(name, line.get(other, fallback));
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
  return make_tokenizer("HuggingFaceTokenizer", folder, {.whole_texts = true});
}

// Texts that speak of picture files become tokens, those of the pictures among them; the pictures in the
// order of the prompts.
ImagePatches encode_with_pictures(std::vector<Prompt>& prompts, const std::optional<Tokenizer>& tokenizer,
                                  const std::vector<Image>& pictures, const ModelArguments& arguments) {
  if (!tokenizer)
    throw UsageError(
        "generate --images: picture files go with --prompt; --prompt-ids go with FILE.safetensors");
  const VisionConfig& vision = arguments.config.model;
  const std::string& given = arguments.config.model.image_processor;
  const ImageTextEncoder encoder(
      *tokenizer, {}, vision,
      ImageProcessor::open(vision, given.empty() ? arguments.source.tokenizer_folder() : given));
  ImagePatches all;
  size_t next = 0;
  for (Prompt& prompt : prompts) {
    const size_t named = encoder.images_in(prompt.text),
                 count = named == 0 && prompts.size() == 1 ? pictures.size() : named;
    if (count > pictures.size() - next)
      throw ConfigError(fmt::format("generate --images: the prompts speak of more pictures than the {} given",
                                    pictures.size()));
    const ImageSample sample = encoder.prompt(prompt.text, std::span(pictures).subspan(next, count));
    next += count;
    prompt.ids = sample.tokens.ids;
    all.add(sample.images);
  }
  if (next < pictures.size())
    throw ConfigError(
        fmt::format("generate --images: the prompts speak of {} of the {} pictures; write <image> "
                    "where one belongs",
                    next, pictures.size()));
  return all;
}

// The token that a text without a prompt follows: in training it parts documents.
int64_t first_of_a_document(const ModelArguments& arguments, const std::optional<Tokenizer>& tokenizer) {
  const TokenId end = tokenizer ? tokenizer->special_ids().eod : -1;
  if (end >= 0) return end;
  const std::vector<int64_t> ends = arguments.source.end_tokens();
  if (!ends.empty()) return ends.front();
  throw ConfigError(
      "generate --num-samples: no token is known to end a document; name the tokenizer by --tokenizer-type, "
      "or "
      "begin with --prompt-ids");
}

// Texts become tokens, with what the tokenizer's own settings put around them, such as BOS.
void encode(std::vector<Prompt>& prompts, const std::optional<Tokenizer>& tokenizer,
            const ModelConfig& model) {
  const int64_t context = longest_context(model);
  for (Prompt& prompt : prompts) {
    if (!prompt.text.empty() && prompt.ids.empty()) {
      const std::vector<TokenId> ids = tokenizer->encode(prompt.text, true);
      prompt.ids.assign(ids.begin(), ids.end());
    }
    if (prompt.ids.empty()) throw ConfigError("generate: a prompt is empty; give at least one token");
    for (int64_t id : prompt.ids)
      if ((id < 0 || id >= model.vocab_size) && !model.is_image_token(id))
        throw ConfigError(
            fmt::format("generate: token {} is not in the vocabulary of {}", id, model.vocab_size));
    if (std::ssize(prompt.ids) > context)
      throw ConfigError(
          fmt::format("generate: the prompt has {} tokens, the model sees {} at most; shorten it",
                      prompt.ids.size(), context));
  }
}

bool is_zero(const std::string& number) {
  return number.find('0') != number.npos && number.find_first_not_of("0.") == number.npos;
}

Sampling sampling_of(const CommandLine& line, const ModelArguments& arguments) {
  if (line.has("--greedy") && line.has("--temperature"))
    throw UsageError("generate: --greedy and --temperature contradict each other");
  const std::string k = either(line, "--top-k", "--top_k", "0"), p = either(line, "--top-p", "--top_p", "1");
  const int64_t top_k = parse_int("generate", "--top-k", k);
  const bool samples = whole(line, "--num-samples", 0) > 0;  // which would be one text otherwise
  const bool draws = (line.has("--temperature") || samples || top_k > 0 || (p != "1" && !is_zero(p))) &&
                     !line.has("--greedy") && top_k != 1;
  const std::string given = line.get("--temperature", "1");
  const double temperature = is_zero(given) ? 0 : parse_positive("generate", "--temperature", given);
  const Config& config = arguments.config;
  return {.temperature = draws ? temperature : 0,
          .top_k = top_k,
          .top_p = is_zero(p) ? 0 : parse_positive("generate", "--top-p", p, 1),
          .seed = static_cast<uint64_t>(config.inference.inference_sampling_seed.value_or(config.rng.seed)),
          .repetition_penalty =
              line.has("--repetition-penalty")
                  ? parse_positive("generate", "--repetition-penalty", line.get("--repetition-penalty"))
                  : arguments.source.repetition_penalty()};
}

// What is asked of every prompt.
Request request_of(const CommandLine& line, const ModelArguments& arguments) {
  Request request;
  request.sampling = sampling_of(line, arguments);
  const std::string_view flag = line.has("--max-new-tokens")           ? "--max-new-tokens"
                                : line.has("--num-tokens-to-generate") ? "--num-tokens-to-generate"
                                                                       : "--out-seq-length";
  request.max_tokens = whole(line, flag, 64);
  if (request.max_tokens < 1) throw UsageError(fmt::format("generate: {} needs at least 1", flag));
  if (line.has("--termination-id")) {
    const int64_t id = whole(line, "--termination-id", -1);
    if (id >= 0) request.end_tokens = {id};
  } else if (!line.has("--ignore-eos")) {
    request.end_tokens = arguments.source.end_tokens();
  }
  if (line.has("--ignore-eos")) request.end_tokens.clear();
  const InferenceConfig& inference = arguments.config.inference;
  const auto top = static_cast<int>(std::clamp<int64_t>(whole(line, "--top-n-logprobs", 0), 0, 1 << 20));
  if (inference.return_log_probs || line.has("--top-n-logprobs")) {
    request.top_logprobs = top;
    if (!inference.skip_prompt_log_probs) request.prompt_logprobs = top;
  }
  return request;
}

// The tokens that end an answer, by the words of --stop-words.
std::vector<std::vector<int64_t>> stop_sequences(const CommandLine& line, const ModelArguments& arguments) {
  std::vector<std::vector<int64_t>> sequences;
  if (!line.has("--stop-words")) return sequences;
  const Tokenizer tokenizer = tokenizer_of(arguments);
  for (const std::string& word : line.own.at("--stop-words")) {
    const std::vector<TokenId> ids = tokenizer.encode(word, false);
    if (ids.empty()) throw ConfigError("generate --stop-words: a word is empty; leave it out");
    sequences.emplace_back(ids.begin(), ids.end());
  }
  return sequences;
}

// Whether prompts can only be answered one by one, each token reading all before it again.
bool needs_whole_texts(const Model& model, const CommandLine& line) {
  return line.has("--images") || !model.can_decode();
}

class PromptBatch {
 public:
  PromptBatch(Invocation& invocation, const CommandLine& line, const ModelArguments& arguments,
              const std::vector<Prompt>& prompts, const Request& request, const ImagePatches& pictures)
      : invocation_(invocation),
        line_(line),
        arguments_(arguments),
        prompts_(prompts),
        request_(request),
        pictures_(pictures),
        answers_(prompts.size()) {}

  std::vector<Generated> run() {
    run_on_ranks(arguments_.config, arguments_.place, invocation_.log,
                 [&](RankContext& ctx, const ProcessGroup& world) {
                   LoadedModel loaded(ctx, world, arguments_);
                   if (world.rank() == 0)
                     progress_ = std::make_unique<Progress>(
                         invocation_.log, "generating",
                         request_.max_tokens * static_cast<int64_t>(prompts_.size()));
                   ctx.batch_invariant = arguments_.config.precision.batch_invariant_mode;
                   const bool small = fp8_cache(line_.get("--kv-cache-dtype")),
                              whole = needs_whole_texts(loaded.model(), line_);
                   if (small && whole)
                     throw ConfigError(
                         "--kv-cache-dtype fp8: this model reads its texts whole and keeps no cache; leave "
                         "it out");
                   const bool alone = prompts_.size() == 1 && request_.top_logprobs < 0 &&
                                      !records_routing() && request_.stop_sequences.empty() && !small;
                   if (alone || whole)
                     one_by_one(ctx, world, loaded.model());
                   else
                     together(ctx, world, loaded.model());
                   if (world.rank() == 0) progress_.reset();
                 });
    return std::move(answers_);
  }

 private:
  void add(size_t index, const TokenChoice& choice) {
    answers_[index].tokens.push_back(choice);
    progress_->update(++count_, "tokens");
  }

  bool records_routing() const { return arguments_.config.model.moe_enable_routing_replay; }

  void one_by_one(RankContext& ctx, const ProcessGroup& world, Model& model) {
    if (records_routing())
      throw ConfigError(
          "generate: the experts of tokens are told by a decoder without images and with "
          "--context-parallel-size 1; remove --moe-enable-routing-replay");
    if (request_.top_logprobs >= 0)
      throw ConfigError(
          "generate: log-probabilities need a decoder without images and --context-parallel-size 1; remove "
          "--return-log-probs and --top-n-logprobs");
    if (!request_.stop_sequences.empty())
      throw ConfigError(
          "generate: stop words need a decoder without images and --context-parallel-size 1; remove "
          "--stop-words");
    const std::unique_ptr<ImageFile> pictures =
        pictures_.grids.empty() ? image_file(line_, arguments_)
                                : std::make_unique<ImageFile>(pictures_, arguments_.config.model);
    for (size_t i = 0; i < prompts_.size(); ++i) {
      GenerateOptions options{.max_new_tokens = request_.max_tokens,
                              .sampling = request_.sampling,
                              .end_tokens = request_.end_tokens,
                              .speculative_tokens = arguments_.config.inference.num_speculative_tokens,
                              .cuda_graphs = !line_.has("--no-cuda-graphs"),
                              .start_token = arguments_.source.start_token()};
      options.sampling.seed += prompts_[i].sample;
      Images images;
      if (pictures) {
        images = pictures->next(ctx, prompts_[i].ids, arguments_.dtype());
        if (!images.grids.empty()) options.images = &images;
      }
      if (world.rank() == 0) options.on_token = [this, i](int64_t id) { add(i, {id, 0, {}}); };
      const std::vector<int64_t> ids = generate(ctx, world, model, prompts_[i].ids, options);
      if (world.rank() == 0 && !ids.empty() &&
          std::ranges::find(request_.end_tokens, ids.back()) != request_.end_tokens.end())
        answers_[i].finish = FinishReason::end_token;
    }
  }

  void together(RankContext& ctx, const ProcessGroup& world, Model& model) {
    EngineOptions options = engine_options(arguments_.config);
    options.max_requests = std::min(options.max_requests, static_cast<int64_t>(prompts_.size()));
    options.record_routing = records_routing();
    options.fp8_cache = fp8_cache(line_.get("--kv-cache-dtype"));
    options.cuda_graphs = !line_.has("--no-cuda-graphs");
    Engine engine(ctx, world, model, options);
    if (world.rank() == 0)
      for (size_t i = 0; i < prompts_.size(); ++i) submit(engine, i);
    const int64_t interval = arguments_.config.inference.inference_logging_step_interval;
    for (int64_t step = 1; engine.step(); ++step) {
      if (world.rank() != 0 || interval == 0 || step % interval != 0) continue;
      const EngineStats stats = engine.stats();
      invocation_.log.info("step {}: {} requests running, {} waiting, {} of {} blocks, {} + {} tokens", step,
                           stats.running, stats.waiting, stats.used_blocks, stats.total_blocks,
                           stats.prompt_tokens, stats.generated_tokens);
    }
  }

  void submit(Engine& engine, size_t index) {
    Request request = request_;
    request.prompt = prompts_[index].ids;
    request.sampling.seed += prompts_[index].sample;
    answers_[index].logprobs = request.top_logprobs >= 0;
    answers_[index].prompt_logprobs = request.prompt_logprobs >= 0;
    engine.submit(std::move(request), [this, index](const RequestUpdate& update) {
      Generated& answer = answers_[index];
      answer.prompt.insert(answer.prompt.end(), update.prompt.begin(), update.prompt.end());
      for (const TokenChoice& choice : update.tokens) add(index, choice);
      if (!update.finish) return;
      answer.finish = *update.finish;
      answer.tokens.resize(answer.tokens.size() - static_cast<size_t>(update.stop_tokens));
      answer.experts = update.experts;
      answer.expert_layers = expert_layers(arguments_.config.model);
      answer.expert_topk = arguments_.config.model.moe_router_topk;
    });
  }

  Invocation& invocation_;
  const CommandLine& line_;
  const ModelArguments& arguments_;
  const std::vector<Prompt>& prompts_;
  const Request& request_;
  const ImagePatches& pictures_;    // none where pixels are prepared
  std::vector<Generated> answers_;  // what follows is the first rank's
  std::unique_ptr<Progress> progress_;
  int64_t count_ = 0;
};

void print_answer(Invocation& invocation, const Prompt& prompt, const Generated& answer,
                  const std::optional<Tokenizer>& tokenizer) {
  const std::vector<int64_t> ids = answer.ids();
  if (tokenizer) {
    const std::string written = tokenizer->decode(std::vector<TokenId>(ids.begin(), ids.end()), true);
    fmt::print(invocation.out, "{}{}\n", prompt.text, written);
    return;
  }
  std::string text;
  for (int64_t id : ids) text += (text.empty() ? "" : ",") + std::to_string(id);
  fmt::print(invocation.out, "{}\n", text);
}

}  // namespace

std::string generate_help() {
  return model_command_help(
      "usage: megatron generate (--hf DIR | --ckpt DIR) (--prompt TEXT | --prompt-ids 1,2,3 | --prompts "
      "TEXT... "
      "|\n"
      "                         --prompt-file FILE | --num-samples N) [options]\n"
      "\n"
      "Lets a model go on from prompts, under any layout (--ranks 2 --tensor-model-parallel-size 2 ...), "
      "and\n"
      "prints the texts, or the new tokens' numbers. Several prompts run in one batch, with a paged cache. A "
      "model\n"
      "with an encoder reads the prompt there and answers.\n",
      kFlags);
}

int run_generate(Invocation& invocation) {
  const CommandLine line = parse_command_line(invocation.args, kFlags);
  std::vector<Prompt> prompts = given_prompts(line);
  if (fp8_cache(line.get("--kv-cache-dtype")) && line.has("--images"))
    throw ConfigError(
        "--kv-cache-dtype fp8: with --images texts are read whole, without a cache; leave one of them out");
  const ModelArguments arguments = model_arguments(invocation, line, "generate");
  if (arguments.config.model.masked_lm_head)
    throw ConfigError(
        fmt::format("{}: the model fills in masked tokens and does not go on from a prompt; "
                    "see megatron logits",
                    arguments.source.path()));
  Request request = request_of(line, arguments);
  request.stop_sequences = stop_sequences(line, arguments);
  std::optional<Tokenizer> tokenizer;
  if (std::ranges::any_of(prompts, [](const Prompt& prompt) { return !prompt.text.empty(); }))
    tokenizer = tokenizer_of(arguments);
  if (whole(line, "--num-samples", 0) > 0) {
    if (arguments.config.tokenizer.tokenizer_type != TokenizerKind::none ||
        !arguments.source.tokenizer_folder().empty())
      tokenizer = tokenizer_of(arguments);
    for (Prompt& prompt : prompts) prompt.ids = {first_of_a_document(arguments, tokenizer)};
  }
  // A model that says nothing of its ends was trained on documents that its tokenizer ends.
  if (tokenizer && request.end_tokens.empty() && !line.has("--ignore-eos") && !line.has("--termination-id"))
    if (const TokenId eos = tokenizer->special_ids().eos; eos >= 0) request.end_tokens = {eos};
  const std::vector<Image> files = picture_files(line, arguments);
  ImagePatches pictures;
  if (!files.empty()) pictures = encode_with_pictures(prompts, tokenizer, files, arguments);
  encode(prompts, tokenizer, arguments.config.model);
  const std::vector<Generated> answers =
      PromptBatch(invocation, line, arguments, prompts, request, pictures).run();
  if (arguments.place.process != 0) return 0;
  for (size_t i = 0; i < answers.size(); ++i) {
    if (line.has("--json"))
      fmt::print(invocation.out, "{}\n", generated_json(answers[i], tokenizer).dump());
    else
      print_answer(invocation, prompts[i], answers[i], tokenizer);
  }
  if (const std::string path =
          either(line, "--output-path", "--sample-output-file", line.get("--genfile", ""));
      !path.empty()) {
    AtomicFile file(path);
    file.write(output_file(prompts, answers, tokenizer).dump(2));
    file.write("\n");
    file.commit();
  }
  return 0;
}

}  // namespace megatron
