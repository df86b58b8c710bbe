#include "megatron/cli/commands.h"

#include <algorithm>
#include <cstdlib>

#include "megatron/cli/commands/layout_conversion.h"
#include "megatron/config/help.h"
#include "megatron/rl/rl_data.h"
#include "megatron/training/run/run.h"

namespace megatron {
namespace {

std::string help(std::string_view command, std::string_view what) {
  return fmt::format(
      "usage: megatron {} [settings]\n"
      "\n"
      "{}\n"
      "\n"
      "data:  --data-path PREFIX (.bin/.idx; weights and prefixes blend), --mock-data,\n"
      "       --sft --data-path FILE.jsonl, or --replay FILE.safetensors:KEY\n"
      "       (tokens [iterations, global batch, length + 1]); or rewards of answers:\n"
      "       --perform-rl-step --langrl-env-config FILE.yaml (docs/rl.md)\n"
      "ranks: --ranks N, threads of this process, or of each that mpirun, torchrun\n"
      "       or srun started; --tensor-model-parallel-size and the like divide them\n"
      "files: --save DIR --save-interval N, --load DIR (a run goes on where its newest\n"
      "       checkpoint is), --metrics FILE.jsonl (one JSON object per iteration)\n"
      "       --ckpt-convert-format torch_dist|safetensors --ckpt-convert-save DIR: writes\n"
      "       the checkpoint of --load in that layout and ends\n"
      "       --fake-process-group shows the plan of all ranks, of --ranks, --world-size\n"
      "       or $WORLD_SIZE, and ends\n"
      "GPUs:  the first step autotunes GEMM kernels and caches the choice\n"
      "       in $MEGATRON_CACHE (~/.cache/megatron); MEGATRON_CACHE= or\n"
      "       --deterministic-mode: the library's first proposals\n"
      "\n"
      "Before it starts, the memory of a step is planned and told, and a run that its\n"
      "GPUs do not hold is refused with what helps; after the second iteration\n"
      "follows what was held. Of the metrics, memory_gib is what tensors and scratch\n"
      "memory held at most, reserved_gib what was taken from the device for it.\n"
      "\n{}",
      command, what, settings_overview());
}

// Megatron-LM takes steps of one rank without the others, to see what memory it needs; the plan says it of
// all.
std::optional<int> plan_instead(const Invocation& invocation) {
  constexpr CommandFlag kFlags[] = {{"--fake-process-group", 0, ""}};
  const CommandLine line = parse_command_line(invocation.args, kFlags);
  if (!line.has("--fake-process-group")) return {};
  Invocation plan = invocation;
  const auto says_world = [](const FlagUse& use) {
    return canonical_flag(use.name) == "--ranks" || canonical_flag(use.name) == "--world-size";
  };
  const std::vector<FlagUse>& flags = line.sources.flags;
  const char* world = std::getenv("WORLD_SIZE");
  if (world && std::none_of(flags.begin(), flags.end(), says_world))
    plan.args.insert(plan.args.begin(), {"--world-size", world});
  return run_plan(plan);
}

int train(Invocation& invocation, bool needs_weights) {
  if (const std::optional<int> code = convert_layout(invocation)) return *code;
  if (const std::optional<int> code = plan_instead(invocation)) return *code;
  RunSpec spec = run_spec(invocation.args);
  spec.needs_weights = needs_weights;
  spec.log = invocation.log;
  spec.out = invocation.out;
  spec.live_data = rl::rollout_data();
  return run(spec).exit_code();
}

}  // namespace

std::string pretrain_help() {
  return help("pretrain", "Trains a model from scratch, or from the weights of --hf DIR.");
}
int run_pretrain(Invocation& invocation) { return train(invocation, false); }

std::string finetune_help() {
  return help("finetune", "Trains a model further, from --hf DIR or a checkpoint (--load DIR --finetune).");
}
int run_finetune(Invocation& invocation) { return train(invocation, true); }

}  // namespace megatron
