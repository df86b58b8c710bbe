#include "megatron/cli/commands.h"

#include <algorithm>
#include <memory>

#include "megatron/base/error.h"
#include "megatron/base/progress.h"
#include "megatron/checkpoint/safetensors.h"
#include "megatron/cli/common/model_arguments.h"
#include "megatron/models/whole_model.h"
#include "megatron/training/run/routing_data.h"
#include "megatron/training/run/run_data.h"
#include "megatron/transformer/layer_pattern.h"

namespace megatron {
namespace {

constexpr CommandFlag kFlags[] = {
    {"--ckpt", 1, "a checkpoint, or what --save was given; --hf DIR: a Hugging Face model"},
    {"--tokens", 1, "FILE.safetensors[:KEY], whole numbers [batch, length]"},
    {"--images", 1, "FILE.safetensors[:PREFIX]: pixel_values (and image_grid_thw) of the images in the text"},
    {"--attention-mask", 1, "BERT, T5: FILE.safetensors[:KEY], 1 for a token, 0 for padding behind them"},
    {"--token-types", 1, "BERT: FILE.safetensors[:KEY], the same shape; 0 where not given"},
    {"--decoder-tokens", 1, "T5: FILE.safetensors[:KEY], [batch, length] of what its decoder reads"},
    {"--replay-routing", 1, "FILE.safetensors:KEY, the experts of the tokens: [batch, length, layers, k]"},
    {"--out", 1, "FILE.safetensors, which gets `logits`, fp32 [batch, length, vocabulary]"},
};

// How many tokens of each row are real.
std::vector<int64_t> lengths_of(const GivenTokens& mask) {
  std::vector<int64_t> lengths;
  for (int64_t row = 0; row < mask.rows; ++row) {
    const auto begin = mask.tokens.begin() + row * mask.length, end = begin + mask.length;
    const auto padding = std::find(begin, end, 0);
    if (padding == begin || std::find(padding, end, 1) != end)
      throw ConfigError(
          fmt::format("--attention-mask: row {} must be tokens, then padding: ones, then zeros", row));
    lengths.push_back(padding - begin);
  }
  return lengths;
}

// What models that are no plain decoders read beside their tokens.
struct Further {
  std::vector<int64_t> lengths, types;
  GivenTokens decoder{.rows = 0, .length = 0, .tokens = {}};
};

Further read_further(const CommandLine& line, const ModelConfig& model, const GivenTokens& given) {
  const auto read = [&](const char* flag, bool wanted, int64_t vocabulary) {
    if (!wanted) throw ConfigError(fmt::format("{}: this model has no use for it", flag));
    GivenTokens values = read_tokens(flag, line.get(flag), vocabulary);
    if (values.rows != given.rows)
      throw ConfigError(fmt::format("{}: it has {} rows, --tokens {}", flag, values.rows, given.rows));
    if (flag != std::string_view("--decoder-tokens") && values.length != given.length)
      throw ConfigError(
          fmt::format("{}: its rows have {}, those of --tokens {}", flag, values.length, given.length));
    return values;
  };
  Further further;
  if (line.has("--attention-mask"))
    further.lengths = lengths_of(read("--attention-mask", !is_decoder(model), 2));
  if (line.has("--token-types"))
    further.types = read("--token-types", model.num_tokentypes > 0, model.num_tokentypes).tokens;
  if (line.has("--decoder-tokens"))
    further.decoder = read("--decoder-tokens", is_encoder_decoder(model), model.vocab_size);
  else if (is_encoder_decoder(model))
    throw ConfigError("logits: the model's decoder needs tokens of its own; give --decoder-tokens FILE");
  return further;
}

std::span<const int64_t> rows_of(const std::vector<int64_t>& values, int64_t row, int64_t count,
                                 int64_t length) {
  if (values.empty()) return {};
  return std::span(values).subspan(static_cast<size_t>(row * length), static_cast<size_t>(count * length));
}

// Some rows of a tensor of the host; undefined where it is.
Tensor on_device(RankContext& ctx, const Tensor& host, int64_t begin, int64_t count) {
  if (!host) return {};
  const Tensor rows = host.slice(0, begin, begin + count);
  const auto* values = rows.data<int64_t>();
  return ctx.from_vector(std::vector<int64_t>(values, values + rows.numel()), rows.shape());
}

}  // namespace

std::string logits_help() {
  return model_command_help(
      "usage: megatron logits (--hf DIR | --ckpt DIR) --tokens FILE.safetensors[:KEY] --out "
      "FILE.safetensors\n"
      "                       [settings]\n"
      "\n"
      "What a model makes of given tokens, under any layout (--ranks 4 --tensor-model-parallel-size 2 ...).\n"
      "Images stand where the text has their tokens, row after row.\n"
      "--micro-batch-size rows go through the model at once. With --moe-enable-routing-replay the file gets\n"
      "`routed_experts`, int64 [batch, length, layers with experts, k], too.\n",
      kFlags);
}

int run_logits(Invocation& invocation) {
  const CommandLine line = parse_command_line(invocation.args, kFlags);
  for (const char* flag : {"--tokens", "--out"})
    if (!line.has(flag)) throw UsageError(fmt::format("logits: {} FILE is missing", flag));
  const ModelArguments arguments = model_arguments(invocation, line, "logits");
  const int64_t vocabulary = arguments.config.model.vocab_size;
  const GivenTokens given = read_tokens("--tokens", line.get("--tokens"), vocabulary);
  require_positions("--tokens " + line.get("--tokens"), given.length, arguments.config.model);
  const Further further = read_further(line, arguments.config.model, given);
  const int64_t rows = given.rows, length = given.length,
                seen = further.decoder.rows > 0 ? further.decoder.length : length;  // of whose logits
  const ModelConfig& model = arguments.config.model;
  const bool records = model.moe_enable_routing_replay;
  const Shape routed{rows, length, expert_layers(model), model.moe_router_topk};
  Tensor routing;
  if (line.has("--replay-routing"))
    routing = read_routing("--replay-routing", line.get("--replay-routing"), rows * length, model);
  const int64_t at_once = std::max<int64_t>(1, arguments.config.train.micro_batch_size);

  run_on_ranks(
      arguments.config, arguments.place, invocation.log, [&](RankContext& ctx, const ProcessGroup& world) {
        LoadedModel loaded(ctx, world, arguments);
        std::unique_ptr<ImageFile> pictures = image_file(line, arguments);
        std::unique_ptr<SafetensorsWriter> writer;
        std::unique_ptr<Progress> progress;
        if (world.rank() == 0) {
          std::vector<SafetensorsItem> items{{"logits", DType::F32, Shape{rows, seen, vocabulary}}};
          if (records) items.push_back({"routed_experts", DType::I64, routed});
          writer = std::make_unique<SafetensorsWriter>(line.get("--out"), items);
          progress = std::make_unique<Progress>(invocation.log, "logits", rows);
        }
        for (int64_t row = 0; row < rows; row += at_once) {
          const int64_t count = std::min(at_once, rows - row);
          const std::span<const int64_t> tokens = rows_of(given.tokens, row, count, length);
          const Images images = pictures ? pictures->next(ctx, tokens, arguments.dtype()) : Images{};
          Tensor logits = loaded.model().logits(
              ctx, {.tokens = tokens,
                    .rows = count,
                    .images = images.grids.empty() ? nullptr : &images,
                    .lengths = rows_of(further.lengths, row, count, 1),
                    .token_types = rows_of(further.types, row, count, length),
                    .decoder_tokens = rows_of(further.decoder.tokens, row, count, seen),
                    .routed_experts = on_device(ctx, routing, row * length, count * length)});
          if (!writer) continue;
          Tensor single = ctx.empty(logits.shape(), DType::F32);
          ctx.kernels->copy(ctx.kernel_context(), {logits, single});
          const std::vector<float> values = ctx.to_vector<float>(single);
          world.require_running();
          writer->write("logits", static_cast<size_t>(row * seen * vocabulary) * sizeof(float),
                        std::as_bytes(std::span(values)));
          if (records) {
            const std::vector<int64_t> experts = ctx.to_vector<int64_t>(loaded.model().routed_experts());
            world.require_running();
            writer->write("routed_experts",
                          static_cast<size_t>(row * length * routed[2] * routed[3]) * sizeof(int64_t),
                          std::as_bytes(std::span(experts)));
          }
          progress->update(row + count, "");
        }
        if (writer) writer->commit();
      });
  if (arguments.place.process == 0)
    invocation.log.info("{}: logits fp32 {}", line.get("--out"), Shape{rows, seen, vocabulary});
  return 0;
}

}  // namespace megatron
