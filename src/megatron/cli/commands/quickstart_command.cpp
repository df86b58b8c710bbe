#include "megatron/cli/commands.h"

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
      int_flag("--vocab-size", "tokens of the tokenizer (2048)", s.options.vocab_size, 300),
      text_flag("--out", "DIR", "where everything goes (quickstart)", s.options.out),
      text_flag("--prompt", "TEXT", "what the trained model continues", s.options.prompt),
      int_flag("--sample-tokens", "how many tokens it writes (100)", s.options.sample_tokens),
      switch_flag("--json", "one JSON document", s.json),
  };
}

}  // namespace

std::string quickstart_help() {
  Settings unused;
  return "usage: megatron quickstart [options]\n"
         "\n"
         "The whole of training on nothing but the clone: trains a tokenizer on its text, makes .bin/.idx\n"
         "of it, trains a small Llama on four ranks that are threads of this process (tensor parallel 2 x\n"
         "pipeline parallel 2), evaluates it, saves a checkpoint, exports it for Hugging Face's libraries\n"
         "and writes a sample. A few minutes on two cores.\n"
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
    json["tokenizer"] = report.tokenizer;
    json["data"] = report.data;
    json["checkpoint"] = report.checkpoint;
    json["hf"] = report.hf;
    json["sample"] = report.sample;
    fmt::print(invocation.out, "{}\n", json.dump(2));
    return 0;
  }
  fmt::print(invocation.out, "{}{}\n", settings.options.prompt, report.sample);
  invocation.log.info(
      "\ntokenizer    {}\ndata         {}.bin, .idx\ncheckpoint   {}\nHugging Face {}\n"
      "next: megatron generate --hf {} --help, megatron pretrain --help",
      report.tokenizer, report.data, report.checkpoint, report.hf, report.hf);
  return 0;
}

}  // namespace megatron
