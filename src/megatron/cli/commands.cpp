#include "megatron/cli/commands.h"

#include <array>

namespace megatron {

std::span<const Command> commands() {
  static constexpr std::array table{
      Command{"quickstart", "train a small GPT on this clone's own text, end to end", quickstart_help,
              quickstart_command},
      Command{"pretrain", "train a model from scratch", pretrain_help, run_pretrain},
      Command{"finetune", "train a checkpoint or a Hugging Face model further; SFT", finetune_help,
              run_finetune},
      Command{"launch", "start and restart the processes of a job, here or by Slurm", launch_help,
              run_launch},
      Command{"bench", "measure speed beside this machine's own ceilings", bench_help, run_bench,
              bench_part_help},
      Command{"checkpoint", "inspect, verify and reshard checkpoints", checkpoint_help, run_checkpoint},
      Command{"preprocess", "encode text files into token datasets", preprocess_help, run_preprocess},
      Command{"data", "inspect datasets, print samples, pack SFT sets", data_help, run_data},
      Command{"convert", "import and export Hugging Face and Megatron-LM weights", convert_help, run_convert},
      Command{"compare", "compare two models and name the first layer that differs", compare_help,
              run_compare},
      Command{"logits", "write logits for given tokens, under any layout", logits_help, run_logits},
      Command{"generate", "generate text or tokens from prompts", generate_help, run_generate},
      Command{"serve", "serve a model to OpenAI's clients, with a page to talk to it", serve_help, run_serve},
      Command{"chat", "talk to a model or a server in the terminal", chat_help, run_chat},
      Command{"tokenizer", "encode and decode text, train a BPE vocabulary, render chats", tokenizer_help,
              run_tokenizer, tokenizer_part_help},
      Command{"recipes", "list and show the configurations for --recipe NAME", recipes_help, run_recipes},
      Command{"report", "draw training runs as one HTML page", report_help, run_report},
      Command{"config", "print the resolved configuration and where values come from", config_help,
              run_config},
      Command{"explain", "explain a setting: effect, range, what depends on it", explain_help, run_explain},
      Command{"groups", "list the process groups of a parallel layout", groups_help, run_groups},
      Command{"parity", "check that layouts train alike, tensor by tensor", parity_help, run_parity},
      Command{"plan", "plan memory, FLOPs, communication and schedule of a run", plan_help, run_plan},
      Command{"autotune", "predict the speed of training plans and find the fastest", autotune_help,
              run_autotune, autotune_part_help},
      Command{"resilience", "simulate the goodput of a cluster under failures", resilience_help,
              run_resilience},
      Command{"doctor", "check that this machine, its GPUs and the build can train", doctor_help, run_doctor},
  };
  return table;
}

}  // namespace megatron
