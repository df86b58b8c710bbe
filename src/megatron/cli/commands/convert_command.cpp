#include "megatron/cli/commands.h"

#include <algorithm>
#include <memory>

#include "megatron/base/error.h"
#include "megatron/base/interruption.h"
#include "megatron/base/progress.h"
#include "megatron/bridge/convert.h"
#include "megatron/bridge/family.h"
#include "megatron/bridge/megatron/convert.h"
#include "megatron/cli/flags.h"

namespace megatron {
namespace {

struct Settings {
  std::string hf, megatron, checkpoint, out, dtype, hf_config;
  int64_t files = 1;
  bool to_megatron = false, json = false;
};

// --megatron names what is imported, and is a switch of an export.
std::vector<Flag> flags(Settings& settings, bool exporting) {
  return {text_flag("--hf", "DIR", "import: a Hugging Face model", settings.hf),
          exporting
              ? switch_flag("--megatron", "export: write Megatron-LM's torch_dist", settings.to_megatron)
              : text_flag("--megatron", "DIR", "import: a Megatron-LM checkpoint (torch_dist or torch)",
                          settings.megatron),
          text_flag("--ckpt", "DIR", "export: a checkpoint, or what --save was given", settings.checkpoint),
          text_flag("--out", "DIR", "where the result goes", settings.out),
          text_flag("--dtype", "fp32|bf16|fp16", "of the weights written; as they are where not given",
                    settings.dtype),
          text_flag(
              "--hf-config", "DIR",
              "export: a Hugging Face model whose config.json to follow, for checkpoints that came from none",
              settings.hf_config),
          int_flag("--files", "import: how many files the tensors are spread over (1)", settings.files, 1),
          switch_flag("--json", "one JSON document", settings.json)};
}

std::optional<DType> dtype_of(const std::string& name) {
  if (name.empty()) return {};
  for (const char* known : {"fp32", "bf16", "fp16"})
    if (name == known) return dtype_from_name(name);
  throw UsageError(fmt::format("convert: --dtype {}: say fp32, bf16 or fp16", name));
}

// A bar in megabytes, or kilobytes of a small model; it appears with the first tensor, when the size is
// known.
ConvertProgress reporter(Log& log, std::unique_ptr<Progress>& bar, const Interruption& interruption) {
  return [&](const std::string& tensor, int64_t done, int64_t total) {
    interruption.check();
    const bool small = total < 10'000'000;
    const int64_t unit = small ? 1'000 : 1'000'000;
    if (!bar) bar = std::make_unique<Progress>(log, "converting", total / unit);
    bar->update(done / unit, fmt::format("{}  {}", small ? "kB" : "MB", tensor));
  };
}

void require_flag(std::string_view action, std::string_view flag, const std::string& value) {
  if (value.empty()) throw UsageError(fmt::format("convert {}: {} DIR is missing", action, flag));
}

}  // namespace

std::string convert_help() {
  Settings settings;
  std::string text =
      "usage: megatron convert import --hf DIR --out CKPT [options]\n"
      "       megatron convert import --megatron DIR --out CKPT [options]\n"
      "       megatron convert export --ckpt CKPT --out DIR [options]\n"
      "       megatron convert export --ckpt CKPT --megatron --out DIR [options]\n"
      "\n"
      "Between Hugging Face models and checkpoints, exact to the bit, one tensor in memory at a time. A "
      "checkpoint\n"
      "keeps the configuration and tokenizer that came with the model, so that the way back needs nothing "
      "more.\n"
      "Megatron-LM's checkpoints come with optimizer state, iteration and samples, and go back as "
      "torch_dist.\n"
      "\n" +
      flags_help(flags(settings, false)) + "\narchitectures:\n";
  for (std::string_view name : supported_architectures()) text += "  " + std::string(name) + "\n";
  return text;
}

int run_convert(Invocation& invocation) {
  Settings settings;
  const auto word = std::ranges::find_if(
      invocation.args, [](const std::string& arg) { return arg == "import" || arg == "export"; });
  const bool exporting = word != invocation.args.end() && *word == "export";
  const std::vector<std::string> words = parse_flags("convert", invocation.args, flags(settings, exporting));
  if (words.size() != 1 || (words[0] != "import" && words[0] != "export"))
    throw UsageError("convert: say import or export");
  const std::optional<DType> dtype = dtype_of(settings.dtype);
  require_flag(words[0], "--out", settings.out);
  std::string written = settings.out;
  std::unique_ptr<Progress> bar;
  const Interruption interruption;
  if (!exporting) {
    const ImportOptions options{.dtype = dtype,
                                .files = static_cast<int>(settings.files),
                                .progress = reporter(invocation.log, bar, interruption),
                                .note = [&](const std::string& note) { invocation.log.info("{}", note); }};
    if (settings.megatron.empty() == settings.hf.empty())
      throw UsageError("convert import: say either --hf DIR or --megatron DIR");
    written = settings.megatron.empty() ? import_model(settings.hf, settings.out, options)
                                        : import_megatron(settings.megatron, settings.out, options);
  } else {
    require_flag("export", "--ckpt", settings.checkpoint);
    const ExportOptions options{.dtype = dtype,
                                .hf_config = settings.hf_config,
                                .progress = reporter(invocation.log, bar, interruption)};
    if (settings.to_megatron)
      written = export_megatron(settings.checkpoint, settings.out, options);
    else
      export_model(settings.checkpoint, settings.out, options);
  }
  if (bar) bar->clear();
  print_path(invocation, written, settings.json);
  return 0;
}

}  // namespace megatron
