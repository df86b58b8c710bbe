#include "megatron/training/log/tensor_dumps.h"

#include "megatron/checkpoint/checkpoint.h"
#include "megatron/training/setup/checkpoint_tensors.h"

namespace megatron {
namespace {

bool is_due(const std::string& folder, int64_t interval, int64_t iteration) {
  return !folder.empty() && interval > 0 && iteration % interval == 0;
}

}  // namespace

TensorDumps::TensorDumps(RankContext& ctx, const ProcessGroup& world, const ParallelContext& parallel,
                         const Config& config, RankTrainer& trainer, bool restarted,
                         std::function<void(const std::string& line)> tell)
    : ctx_(ctx),
      world_(world),
      config_(config.checkpoint),
      trainer_(trainer),
      tell_(std::move(tell)),
      probe_(ctx, config, parallel, restarted) {}

void TensorDumps::after_gradients(int64_t iteration) {
  for (const std::string& line : probe_.finish(ctx_, iteration)) tell_(line);
  if (is_due(config_.save, config_.save_wgrads_interval, iteration))
    save("wgrads", iteration, gradient_tensors(ctx_, trainer_));
}

void TensorDumps::after_update(int64_t iteration) {
  if (is_due(config_.save, config_.save_params_interval, iteration))
    save("params", iteration, checkpoint_tensors(trainer_, false));
}

void TensorDumps::save(const char* what, int64_t iteration, std::vector<ShardedTensor> tensors) {
  SaveRequest request;
  request.root = config_.save + "/" + what;
  request.state.iteration = iteration;
  request.tensors = std::move(tensors);
  tell_(fmt::format("saved {}", save_checkpoint(ctx_, world_, request)));
}

}  // namespace megatron
