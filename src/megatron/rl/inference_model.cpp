#include "megatron/rl/inference_model.h"

#include "megatron/models/parallel_setup.h"
#include "megatron/training/step/teacher.h"
#include "megatron/transformer/embedding.h"

namespace megatron::rl {
namespace {

EngineOptions options_of(const Config& config) {
  EngineOptions options = engine_options(config);
  // The text of a row, of which the last token is never read.
  const int64_t longest = config.model.seq_length - 1;
  options.max_length = options.max_length > 0 ? std::min(options.max_length, longest) : longest;
  if (const auto most = config.rl.rl_max_inflight_requests)
    options.max_requests = std::min(options.max_requests, *most);
  return options;
}

bool is_laid_out_alike(const ParallelConfig& a, const ParallelConfig& b) {
  return a.tensor_model_parallel_size == b.tensor_model_parallel_size &&
         a.pipeline_model_parallel_size == b.pipeline_model_parallel_size;
}

}  // namespace

Config inference_layout(const Config& config) {
  const RlConfig& rl = config.rl;
  Config layout = config;
  ParallelConfig& parallel = layout.parallel;
  const int64_t tp = rl.rl_inference_tensor_model_parallel_size.value_or(parallel.tensor_model_parallel_size),
                pp = rl.rl_inference_pipeline_model_parallel_size.value_or(
                    parallel.pipeline_model_parallel_size);
  parallel = ParallelConfig();
  parallel.tensor_model_parallel_size = tp;
  parallel.pipeline_model_parallel_size = pp;
  // As many rows of the vocabulary as in training, padding among them.
  layout.model.make_vocab_size_divisible_by =
      padded_vocab_size(config.model, static_cast<int>(config.parallel.tensor_model_parallel_size)) / tp;
  return teacher_config(layout, layout.model);
}

InferenceModel::Copy::Copy(Config layout, const ProcessGroup& world, DType dtype)
    : config(std::move(layout)),
      parallel(ParallelContext::from_sizes(world, parallel_sizes(config, world.size()))),
      model(config, parallel, dtype) {}

InferenceModel::InferenceModel(RankContext& ctx, const Config& config, RankTrainer& trainer)
    : ctx_(ctx), config_(config), trainer_(trainer) {
  const ParallelContext& training = trainer.parallel();
  const ParallelConfig& own = config.parallel;
  Config layout = inference_layout(config);
  if (trainer.model().can_decode() && is_laid_out_alike(own, layout.parallel) &&
      own.expert_model_parallel_size == 1 && own.virtual_pipeline_model_parallel_size <= 1) {
    ranks_ = training.group(Axis::mp);
    groups_ = training.replicas();
    group_ = training.replica();
    return;
  }
  const ProcessGroup& world = training.world();
  copy_ = std::make_unique<Copy>(std::move(layout), world, trainer.model().dtype());
  ranks_ = copy_->parallel.group(Axis::mp);
  groups_ = copy_->parallel.replicas();
  group_ = copy_->parallel.replica();
  const std::vector<Parameter*> parameters = copy_->model.parameters();
  for (Parameter* parameter : parameters) {
    parameter->trainable = false;
    parameter->allocate(ctx, copy_->model.dtype());
  }
  trainer.finish_parameters();
  copy_->refit = std::make_unique<Refit>(world, trainer.parameters(), parameters);
}

void InferenceModel::refresh() {
  trainer_.finish_parameters();
  if (copy_) copy_->refit->run(ctx_);
  if (engine_) engine_->weights_changed();
}

void InferenceModel::release() { engine_.reset(); }

Engine& InferenceModel::engine() {
  if (!engine_) engine_ = std::make_unique<Engine>(ctx_, ranks_, model(), options_of(config_));
  return *engine_;
}

}  // namespace megatron::rl
