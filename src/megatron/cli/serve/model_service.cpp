#include "megatron/cli/serve/model_service.h"

#include <filesystem>

#include "megatron/base/error.h"
#include "megatron/base/heap.h"
#include "megatron/cli/flags.h"
#include "megatron/cli/version.h"
#include "megatron/models/whole_model.h"
#include "megatron/tokenizers/metadata.h"
#include "megatron/training/setup/tokenizer_setup.h"

namespace megatron {
namespace {

Tokenizer served_tokenizer(const ModelArguments& arguments, std::string_view command) {
  if (arguments.config.tokenizer.tokenizer_type != TokenizerKind::none)
    return open_tokenizer(arguments.config.tokenizer);
  const std::string folder = arguments.source.tokenizer_folder();
  if (folder.empty())
    throw ConfigError(fmt::format("{}: no tokenizer came with {}; give --tokenizer-type with its files",
                                  command, arguments.source.path()));
  return make_tokenizer("HuggingFaceTokenizer", folder, {.whole_texts = true});
}

// That of the model's folder, also of a checkpoint in it, whose own name is that of an iteration.
std::string folder_name(const std::string& path) {
  std::filesystem::path folder = std::filesystem::absolute(path).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();
  if (folder.filename().string().starts_with("iter_")) folder = folder.parent_path();
  return folder.filename();
}

ServedModel served_model(const CommandLine& line, const ModelArguments& arguments, std::string_view command) {
  ServedModel model{.name = line.get("--served-model-name", folder_name(arguments.source.path())),
                    .tokenizer = served_tokenizer(arguments, command),
                    .templates = {},
                    .end_tokens = arguments.source.end_tokens(),
                    .repetition_penalty = arguments.source.repetition_penalty()};
  // A tokenizer that was given brings its own template.
  const std::string& given = arguments.config.tokenizer.tokenizer_model;
  const std::string folder =
      std::filesystem::is_directory(given) ? given : arguments.source.tokenizer_folder();
  const std::string templates = line.get("--chat-template", folder);
  if (!templates.empty()) model.templates = chat::read_chat_templates(templates);
  if (const std::string& metadata = arguments.config.tokenizer.metadata_path; !metadata.empty())
    if (const auto text = read_tokenizer_metadata(metadata).chat_template)
      model.templates.sources = {{"default", *text}};
  if (const TokenId eos = model.tokenizer.special_ids().eos; model.end_tokens.empty() && eos >= 0)
    model.end_tokens = {eos};
  return model;
}

ChatStyle chat_style(const CommandLine& line, const ServedModel& model) {
  std::string source;
  for (const auto& [name, text] : model.templates.sources) source += text;
  const std::string parser = line.get("--tool-call-parser", "auto");
  return {.tools = parser == "auto" ? tool_format_of_template(source) : tool_format(parser),
          .reasoning =
              source.find("<think>") != std::string::npos || model.tokenizer.id_of("<think>").has_value()};
}

}  // namespace

std::vector<CommandFlag> service_flags() {
  return {{"--ckpt", 1, "a checkpoint, or what --save was given; --hf DIR: a Hugging Face model"},
          {"--served-model-name", 1, "what clients call the model [its folder's name]"},
          {"--chat-template", 1, "a Jinja file or folder [the model's own]"},
          {"--tool-call-parser", 1, "auto, hermes, llama3_json, mistral or none [auto]"},
          {"--max-model-len", 1, "tokens of prompt and answer at most [the model's]"},
          {"--quantization", 1, "of weights: int8, on the CPU int4, on a GPU fp8 [none]"},
          {"--kv-cache-dtype", 1, "auto: as the model, or fp8: e4m3 with scales [auto]"},
          {"--kv-cache-gib", 1, "memory of the cache on each rank, in GiB [4]"},
          {"--no-cuda-graphs", 0, "on a GPU, launch every kernel by itself"}};
}

void serve_model(Invocation& invocation, const CommandLine& line, std::string_view command,
                 ServeOptions options) {
  share_one_heap();
  const ModelArguments arguments = model_arguments(invocation, line, command);
  if (!is_decoder(arguments.config.model))
    throw ConfigError(fmt::format("{}: {} serves models that go on from a prompt; see megatron logits",
                                  arguments.source.path(), command));
  if (arguments.config.model.moe_enable_routing_replay)
    throw ConfigError(
        fmt::format("{}: the experts of tokens are told by megatron generate; leave "
                    "--moe-enable-routing-replay out",
                    command));
  EngineOptions engine_settings = engine_options(arguments.config);
  if (line.has("--max-model-len"))
    engine_settings.max_length = parse_int(command, "--max-model-len", line.get("--max-model-len"));
  if (line.has("--kv-cache-gib"))
    engine_settings.cache_bytes =
        static_cast<int64_t>(parse_positive(command, "--kv-cache-gib", line.get("--kv-cache-gib"), 1e6) *
                             static_cast<double>(1 << 30));
  engine_settings.fp8_cache = fp8_cache(line.get("--kv-cache-dtype"));
  engine_settings.cuda_graphs = !line.has("--no-cuda-graphs");
  ServedModel model = served_model(line, arguments, command);
  options.service.style = chat_style(line, model);
  options.service.version = std::string(build_info().version);
  run_on_ranks(arguments.config, arguments.place, invocation.log,
               [&](RankContext& ctx, const ProcessGroup& world) {
                 LoadedModel loaded(ctx, world, arguments);
                 Engine engine(ctx, world, loaded.model(), engine_settings);
                 if (world.rank() != 0) return engine.run();
                 ServedModel own = model;
                 own.max_length = engine.max_length();
                 own.vocab_size = engine.vocab_size();
                 serve(engine, std::move(own), options);
               });
}

}  // namespace megatron
