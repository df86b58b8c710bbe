#include "megatron/cli/logits_command.h"

#include <memory>

#include "megatron/base/error.h"
#include "megatron/base/progress.h"
#include "megatron/checkpoint/safetensors.h"
#include "megatron/cli/model_arguments.h"
#include "megatron/training/token_batches.h"

namespace megatron {
namespace {

constexpr CommandFlag kFlags[] = {
    {"--ckpt", 1, "a checkpoint, or what --save was given; --hf DIR: a Hugging Face model"},
    {"--tokens", 1, "FILE.safetensors[:KEY], whole numbers [batch, length]"},
    {"--images", 1, "FILE.safetensors[:PREFIX]: pixel_values (and image_grid_thw) of the images in the text"},
    {"--out", 1, "FILE.safetensors, which gets `logits`, fp32 [batch, length, vocabulary]"},
};

}  // namespace

std::string logits_help() {
  return model_command_help(
      "usage: megatron logits (--hf DIR | --ckpt DIR) --tokens FILE.safetensors[:KEY] --out "
      "FILE.safetensors\n"
      "                       [settings]\n"
      "\n"
      "What a model makes of given tokens, under any layout (--ranks 4 --tensor-model-parallel-size 2 ...).\n"
      "Images stand where the text has their tokens, row after row.\n"
      "--micro-batch-size rows go through the model at once.\n",
      kFlags);
}

int run_logits(Invocation& invocation) {
  const CommandLine line = parse_command_line(invocation.args, kFlags);
  for (const char* flag : {"--tokens", "--out"})
    if (!line.has(flag)) throw UsageError(fmt::format("logits: {} FILE is missing", flag));
  const ModelArguments arguments = model_arguments(invocation, line, "logits");
  const int64_t vocabulary = arguments.config.model.vocab_size;
  const GivenTokens given = read_tokens("--tokens", line.get("--tokens"), vocabulary);
  const int64_t rows = given.rows, length = given.length;
  const int64_t at_once = std::max<int64_t>(1, arguments.config.train.micro_batch_size);

  run_on_ranks(
      arguments.config, arguments.place, invocation.log, [&](RankContext& ctx, const ProcessGroup& world) {
        LoadedModel loaded(ctx, world, arguments);
        std::unique_ptr<ImageFile> pictures = image_file(line, arguments);
        std::unique_ptr<SafetensorsWriter> writer;
        std::unique_ptr<Progress> progress;
        if (world.rank() == 0) {
          writer = std::make_unique<SafetensorsWriter>(
              line.get("--out"),
              std::vector<SafetensorsItem>{{"logits", DType::F32, Shape{rows, length, vocabulary}}});
          progress = std::make_unique<Progress>(invocation.log, "logits", rows);
        }
        for (int64_t row = 0; row < rows; row += at_once) {
          const int64_t count = std::min(at_once, rows - row);
          const auto tokens =
              std::span<const int64_t>(given.tokens)
                  .subspan(static_cast<size_t>(row * length), static_cast<size_t>(count * length));
          const Images images = pictures ? pictures->next(ctx, tokens, arguments.dtype()) : Images{};
          Tensor logits = loaded.model().logits(
              ctx, {.tokens = tokens, .rows = count, .images = images.grids.empty() ? nullptr : &images});
          if (!writer) continue;
          Tensor single = ctx.empty(logits.shape(), DType::F32);
          ctx.kernels->copy(ctx.kernel_context(), {logits, single});
          const std::vector<float> values = ctx.to_vector<float>(single);
          writer->write("logits", static_cast<size_t>(row * length * vocabulary) * sizeof(float),
                        std::as_bytes(std::span(values)));
          progress->update(row + count, "");
        }
        if (writer) writer->commit();
      });
  return 0;
}

}  // namespace megatron
