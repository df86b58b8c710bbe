#include "megatron/rl/reference.h"

#include "megatron/base/refuse.h"
#include "megatron/bridge/auto_bridge.h"
#include "megatron/checkpoint/agree.h"
#include "megatron/parallel/refit.h"
#include "megatron/training/run/load_places.h"
#include "megatron/training/setup/checkpoint_tensors.h"

namespace megatron::rl {
namespace {

constexpr const char* kHuggingFace = "hf";

}  // namespace

std::string Reference::origin_of(const TrainingRun& run) {
  const CheckpointConfig& checkpoint = run.config.checkpoint;
  if (const std::vector<LoadPlace> places = load_places(checkpoint); !places.empty()) return places[0].path;
  const std::string& pretrained = checkpoint.pretrained_checkpoint;
  if (!pretrained.empty() && recognise_checkpoint(pretrained).kind != CheckpointKind::none)
    return named_place("--pretrained-checkpoint", pretrained).path;
  return run.hf ? kHuggingFace : "";
}

Reference::Reference(const TrainingRun& run, RunView& view, const std::string* origin)
    : teacher_(view.ctx, teacher_config(run.config, run.config.model), view.trainer.parallel(),
               view.trainer.model().dtype()) {
  if (origin) {
    load(run, view, *origin);
  } else {
    view.trainer.finish_parameters();
    Refit(view.world, view.trainer.parameters(), teacher_.parameters()).run(view.ctx);
  }
}

void Reference::load(const TrainingRun& run, RunView& view, const std::string& origin) {
  const std::vector<Parameter*> parameters = teacher_.parameters();
  if (origin.empty()) return teacher_.initialize(view.ctx, static_cast<uint64_t>(run.config.rng.seed));
  if (origin == kHuggingFace) {
    require_input(
        run.hf != nullptr,
        "--grpo-kl-beta: the run began with a Hugging Face model, to which it is held; give --hf DIR "
        "again, or --grpo-kl-beta 0");
    return run.hf->load(view.ctx, parameters);
  }
  agree(view.world, "", [&]() -> std::string {
    std::vector<std::string> notes;
    const LoadPlace place =
        named_place("the checkpoint that the run began with, for --grpo-kl-beta:", origin);
    load_parameters(view.ctx,
                    open_place(place, run.config.checkpoint.verify_integrity, view.world.size() == 1, notes),
                    parameters);
    return "";
  });
}

}  // namespace megatron::rl
