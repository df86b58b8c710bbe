#include "megatron/cli/commands.h"

#include <array>

namespace megatron {

std::span<const Command> commands() {
  static constexpr std::array table{
      Command{"quickstart", "trains a small GPT on the clone's own text and lets it write", quickstart_help,
              quickstart_command},
      Command{"pretrain", "trains a model", pretrain_help, run_pretrain},
      Command{"finetune", "trains a model further, from a checkpoint or a Hugging Face model", finetune_help,
              run_finetune},
      Command{"launch", "start, watch and restart the processes of a job, here or through Slurm", launch_help,
              run_launch},
      Command{"bench", "measured speed against this machine's own ceilings", bench_help, run_bench,
              bench_part_help},
      Command{"checkpoint", "what a checkpoint holds, whether it is sound; writes it in other files",
              checkpoint_help, run_checkpoint},
      Command{"preprocess", "encode text files into token datasets", preprocess_help, run_preprocess},
      Command{"data", "what is in a dataset, and the samples that training would see", data_help, run_data},
      Command{"convert", "Hugging Face models and Megatron-LM checkpoints in and out", convert_help,
              run_convert},
      Command{"compare", "how far two models are apart, and the first layer that differs", compare_help,
              run_compare},
      Command{"logits", "what a model makes of given tokens, under any layout", logits_help, run_logits},
      Command{"generate", "lets a model go on from a prompt", generate_help, run_generate},
      Command{"serve", "serve a model to OpenAI's clients, with a page to talk to it", serve_help, run_serve},
      Command{"chat", "talk to a model or a server in the terminal", chat_help, run_chat},
      Command{"tokenizer", "encode and decode text, train a BPE vocabulary, render chats", tokenizer_help,
              run_tokenizer, tokenizer_part_help},
      Command{"recipes", "the catalogue of ready configurations, for --recipe NAME", recipes_help,
              run_recipes},
      Command{"report", "draws training runs as one HTML page", report_help, run_report},
      Command{"config", "the resolved configuration and the origin of each value", config_help, run_config},
      Command{"explain", "what a setting does, its range and what depends on it", explain_help, run_explain},
      Command{"groups", "every process group of a parallel layout, as lists of ranks", groups_help,
              run_groups},
      Command{"parity", "whether layouts of a configuration train alike, tensor by tensor", parity_help,
              run_parity},
      Command{"plan", "memory, arithmetic, communication and schedule of a run before it is launched",
              plan_help, run_plan},
      Command{"autotune", "predict the speed of training plans and find the fastest", autotune_help,
              run_autotune, autotune_part_help},
      Command{"resilience", "goodput of a cluster under failures", resilience_help, run_resilience},
      Command{"doctor", "whether this machine, its GPUs and the build can train, and what to mend",
              doctor_help, run_doctor},
  };
  return table;
}

}  // namespace megatron
