#include "megatron/cli/commands/quickstart_command.h"

#include <cstdlib>

#include "megatron/base/error.h"
#include "megatron/base/json.h"
#include "megatron/cli/commands/quickstart.h"
#include "megatron/cli/flags.h"

namespace megatron {
namespace {

struct Settings {
  QuickstartOptions options;
  int64_t tensor_parallel = 2, pipeline_parallel = 2;
  bool json = false;
};

std::vector<Flag> flags(Settings& s) {
  return {
      text_flag("--text", "DIR", "learn the text files under this folder (the clone)", s.options.folder),
      int_flag("--steps", "optimizer steps (300)", s.options.steps, 1),
      int_flag("--tensor-model-parallel-size", "ranks that share each layer (2)", s.tensor_parallel, 1),
      int_flag("--pipeline-model-parallel-size", "ranks that share the layers among them (2)",
               s.pipeline_parallel, 1),
      text_flag("--save", "DIR", "where the checkpoint goes (quickstart-checkpoint)", s.options.save),
      text_flag("--prompt", "TEXT", "what the trained model continues", s.options.prompt),
      int_flag("--sample-tokens", "how many bytes it writes (200)", s.options.sample_tokens),
      switch_flag("--json", "one JSON document", s.json),
  };
}

}  // namespace

std::string quickstart_help() {
  Settings unused;
  return "usage: megatron quickstart [options]\n"
         "\n"
         "Trains a small GPT on the clone's own text, byte by byte, on four ranks that are threads of this "
         "process\n"
         "(tensor parallel 2 x pipeline parallel 2); evaluates it, saves a checkpoint, loads that on one "
         "rank and writes\n"
         "a sample. A few minutes on two cores.\n"
         "\n" +
         flags_help(flags(unused));
}

int quickstart_command(Invocation& invocation) {
  Settings settings;
  if (const char* home = std::getenv("MEGATRON_HOME")) settings.options.folder = home;
  auto words = parse_flags("quickstart", invocation.args, flags(settings));
  if (!words.empty()) throw UsageError(fmt::format("quickstart: '{}' is no option", words[0]));
  settings.options.tensor_parallel = static_cast<int>(settings.tensor_parallel);
  settings.options.pipeline_parallel = static_cast<int>(settings.pipeline_parallel);
  QuickstartReport report = quickstart(settings.options, invocation.log);
  if (settings.json) {
    Json json;
    json["first_loss"] = report.first_loss;
    json["last_loss"] = report.last_loss;
    json["validation_loss"] = report.validation_loss;
    json["unigram_entropy"] = report.unigram_entropy;
    json["tokens_per_second"] = report.tokens_per_second;
    json["checkpoint"] = report.checkpoint;
    json["sample"] = report.sample;
    fmt::print(invocation.out, "{}\n", json.dump(2));
    return 0;
  }
  fmt::print(invocation.out, "{}{}\n", settings.options.prompt, report.sample);
  invocation.log.info(
      "\nits checkpoint: {}\nsee also: megatron checkpoint inspect {}, megatron pretrain --help",
      report.checkpoint, settings.options.save);
  return 0;
}

}  // namespace megatron
