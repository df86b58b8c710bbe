#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "megatron/autograd/rank_context.h"
#include "megatron/comm/process_group.h"
#include "megatron/config/config.h"
#include "megatron/training/run/load_places.h"
#include "megatron/training/run/train_state.h"
#include "megatron/training/setup/checkpoint_tensors.h"
#include "megatron/training/setup/run_settings.h"

namespace megatron {

class AutoBridge;

// Fills a rank's trainer from one source: a checkpoint, a Hugging Face model, or a language model's
// checkpoint. RunCheckpoints chooses which. Everything that is passed by reference outlives it.
class CheckpointLoader {
 public:
  // What a checkpoint gave.
  struct Taken {
    TrainState progress;
    LoadReport report;
    std::vector<std::string> notes;
    std::optional<BaseCheckpoint> base;
  };

  // `schedule` becomes the checkpoint's where --use-checkpoint-opt_param-scheduler asks for that. `tell` is
  // called on every rank.
  CheckpointLoader(RankContext& ctx, const ProcessGroup& world, const Config& config, RankTrainer& trainer,
                   RateSchedule& schedule, std::shared_ptr<const AutoBridge> hf, bool restarted,
                   std::function<void(const std::string& line)> tell)
      : ctx_(ctx),
        world_(world),
        config_(config),
        trainer_(trainer),
        schedule_(schedule),
        hf_(std::move(hf)),
        restarted_(restarted),
        tell_(std::move(tell)) {}

  // `weights_only`: neither the optimizer's state nor the progress of the checkpoint's run.
  Taken take(const LoadPlace& place, bool weights_only);
  // `has_state`: the source has state of this run's optimizer.
  Taken take(const TensorSource& source, bool weights_only, bool has_state = true);
  // Prints what the checkpoint and the model do not share; a ConfigError where --dist-ckpt-strictness refuses
  // it. All ranks call it.
  void tell_report(const Taken& taken);
  // Reads the weights of the Hugging Face model.
  void read_hf_weights();
  // Reads --language-model-checkpoint below a vision tower, where one is given. All ranks call it.
  void load_language_model();

 private:
  void tell(const std::string& line) const { tell_(line); }
  void check_schedule(const TensorSource& source);

  RankContext& ctx_;
  const ProcessGroup& world_;
  const Config& config_;
  RankTrainer& trainer_;
  RateSchedule& schedule_;
  std::shared_ptr<const AutoBridge> hf_;
  bool restarted_;
  std::function<void(const std::string& line)> tell_;
};

}  // namespace megatron
