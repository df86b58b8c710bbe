#include "megatron/training/run/run_checkpoints.h"

#include "megatron/bridge/auto_bridge.h"
#include "megatron/bridge/source_files.h"
#include "megatron/checkpoint/checkpoint.h"
#include "megatron/checkpoint/directory.h"
#include "megatron/checkpoint/load.h"
#include "megatron/training/setup/checkpoint_tensors.h"
#include "megatron/training/step/rank_trainer.h"

namespace megatron {

RunCheckpoints::RunCheckpoints(RankContext& ctx, const ProcessGroup& world, const Config& config,
                               RankTrainer& trainer, std::shared_ptr<const AutoBridge> hf, Tell tell)
    : ctx_(ctx),
      world_(world),
      config_(config),
      trainer_(trainer),
      hf_(std::move(hf)),
      tell_(std::move(tell)) {}

void RunCheckpoints::tell(const std::string& line) const {
  if (world_.rank() == 0 && tell_) tell_(line);
}

TrainState RunCheckpoints::load() {
  TrainState progress;
  const std::string& root = config_.checkpoint.load;
  if (!root.empty() && has_checkpoint(root)) {
    CheckpointReader reader(root);
    const bool resume = !config_.checkpoint.finetune;
    const bool optimizer = resume && config_.checkpoint.load_optim;
    load_run(ctx_, reader, trainer_, optimizer);
    if (resume) {
      progress.iteration = reader.state().iteration;
      progress.consumed_samples = reader.state().consumed_samples;
      saved_ = progress.iteration;
      trainer_.optimizer().set_steps(optimizer ? reader.state().optimizer_steps : 0);
    }
    tell(fmt::format("loaded {}", reader.path()));
    return progress;
  }
  if (!root.empty() && config_.checkpoint.exit_on_missing_checkpoint)
    throw ConfigError(fmt::format("--load {}: there is no checkpoint", root));
  if (!root.empty()) tell(fmt::format("no checkpoint in {} yet: training begins at iteration 0", root));
  if (!hf_) return progress;
  trainer_.set_weights(ctx_, [&] { hf_->load(ctx_, trainer_.parameters()); });
  tell(fmt::format("weights from {}", hf_->directory()));
  return progress;
}

bool RunCheckpoints::save_at_interval(const TrainState& progress) {
  const CheckpointConfig& checkpoint = config_.checkpoint;
  if (checkpoint.save.empty() || checkpoint.save_interval <= 0) return false;
  if (progress.iteration % checkpoint.save_interval != 0) return false;
  save(progress);
  return true;
}

void RunCheckpoints::save(const TrainState& progress) {
  if (saved_ == progress.iteration) return;
  SaveRequest request{.root = config_.checkpoint.save,
                      .tensors = checkpoint_tensors(ctx_, trainer_, config_.checkpoint.save_optim)};
  request.state.iteration = progress.iteration;
  request.state.consumed_samples = progress.consumed_samples;
  request.state.optimizer_steps = trainer_.steps_taken();
  request.state.seed = static_cast<uint64_t>(config_.rng.seed);
  request.state.config = config_.to_json();
  if (hf_ && world_.rank() == 0) request.assets = source_files(hf_->directory(), hf_->weights().files());
  const std::string path = save_checkpoint(ctx_, world_, request);
  saved_ = progress.iteration;
  tell(fmt::format("saved {}", path));
}

void RunCheckpoints::finish(const TrainState& progress) {
  if (!config_.checkpoint.save.empty()) save(progress);
}

}  // namespace megatron
