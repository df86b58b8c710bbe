#include "megatron/training/rank_trainer.h"

#include <map>

#include "megatron/ops/elementwise.h"
#include "megatron/ops/reduce.h"
#include "megatron/optimizer/grad_norm.h"
#include "megatron/parallel/pipeline/executor.h"

namespace megatron {

namespace {

TensorParallel tensor_parallel(const Config& config, const ParallelContext& parallel) {
  const ParallelConfig& p = config.parallel;
  TensorParallel tp{.group = parallel.group(Axis::tp), .sequence_parallel = p.sequence_parallel};
  tp.overlap = {.on = p.tp_comm_overlap,
                .gather = p.tp_comm_overlap_ag,
                .scatter = p.tp_comm_overlap_rs,
                .scatter_data = p.tp_comm_overlap_rs_dgrad,
                .gather_under_data = p.tp_comm_bulk_dgrad,
                .reduce_under_weight = p.tp_comm_bulk_wgrad,
                .qkv = !p.tp_comm_overlap_disable_qkv,
                .fc1 = !p.tp_comm_overlap_disable_fc1};
  int groups = static_cast<int>(config.model.num_query_groups);
  if (groups > 0 && tp.size() > groups && !config.model.multi_latent_attention)
    tp.key_group = tp.group.split(tp.rank() / (tp.size() / groups), tp.rank(), "tp-keys");
  return tp;
}

ContextParallel context_parallel(const Config& config, const ParallelContext& parallel) {
  ContextParallel context{.group = parallel.group(Axis::cp)};
  if (parallel.has(Axis::cp_level)) {
    context.inner = parallel.group(Axis::cp_level, 0);
    context.outer = parallel.group(Axis::cp_level, 1);
  }
  context.kinds.clear();
  for (const std::string& name : config.parallel.cp_comm_type) context.kinds.push_back(context_kind(name));
  return context;
}

}  // namespace

RankTrainer::RankTrainer(RankContext& ctx, const Config& config, const ParallelContext& parallel, DType dtype)
    : config_(config),
      parallel_(parallel),
      model_parallel_{.tensor = tensor_parallel(config, parallel),
                      .context = context_parallel(config, parallel),
                      .expert = ExpertParallel::of(parallel)},
      dtype_(dtype),
      microbatch_size_(config.train.micro_batch_size),
      length_(config.model.seq_length) {
  PipelineShape shape = pipeline_shape(config, 1);
  for (int chunk = 0; chunk < shape.vpp; ++chunk)
    chunks_.push_back(
        std::make_unique<GptModel>(config.model, model_slice(config, shape, parallel.rank(Axis::pp), chunk),
                                   model_parallel_, dtype, chunk > 0 ? chunks_[0]->tied_weight() : nullptr));
  for (auto& chunk : chunks_) chunk->set_activation_plan(ActivationPlan::from(config.execution));
  for (Parameter* parameter : parameters()) {
    parameter->allocate(ctx, dtype);
    parameter->initialize(ctx, static_cast<uint64_t>(config.rng.seed));
    parameter->allocate_gradient(ctx);
  }
  const OptimizerConfig& o = config.optimizer;
  optimizer_ = std::make_unique<Adam>(ctx, parameters(),
                                      AdamOptions{.beta1 = o.adam_beta1,
                                                  .beta2 = o.adam_beta2,
                                                  .epsilon = o.adam_eps,
                                                  .weight_decay = o.weight_decay,
                                                  .decoupled = o.decoupled_weight_decay});
}

std::vector<Parameter*> RankTrainer::parameters() {
  std::vector<Parameter*> all;
  for (auto& chunk : chunks_)
    for (Parameter* parameter : chunk->parameters()) all.push_back(parameter);
  return all;
}

MicroBatches RankTrainer::micro_batches(std::span<const int64_t> tokens, std::span<const int64_t> lengths,
                                        Documents documents) const {
  require(lengths.empty() || config_.parallel.variable_seq_lengths,
          "training step: micro-batches of different lengths need model.variable_seq_lengths");
  return {tokens, microbatch_size_, length_, lengths, documents, model_parallel_.context};
}

double RankTrainer::run(RankContext& ctx, const MicroBatches& batch, bool forward_only) {
  int64_t microbatches = batch.count();
  PipelineShape shape = pipeline_shape(config_, microbatches);
  shape.forward_only = forward_only;

  int dp = parallel_.size(Axis::dp), dp_rank = parallel_.rank(Axis::dp);
  std::vector<SeqInfo> sequences;
  for (int64_t i = 0; i < microbatches; ++i) {
    if (i > 0 && batch.rows(i) == batch.rows(i - 1)) {
      sequences.push_back(sequences.back());
      continue;
    }
    SeqInfo& seq = sequences.emplace_back(chunks_[0]->sequences(ctx, batch.rows(i)));
    seq.seed = static_cast<uint64_t>(config_.rng.seed);
    seq.step = steps_taken();
    seq.training = !forward_only;
    seq.loss_weight = 1.0 / static_cast<double>(microbatches * dp);
  }

  PipelineWork work;
  work.dtype = dtype_;
  work.overlap = config_.parallel.overlap_p2p_comm.value_or(true);
  int64_t split = model_parallel_.tensor.splits_tokens() ? model_parallel_.tensor.size() : 1;
  if (!config_.parallel.variable_seq_lengths)
    work.boundary = Shape{sequences[0].tokens() / split, config_.model.hidden_size};
  work.forward = [&](RankContext& rank, int chunk, int microbatch, const Tensor& input) {
    GptModel& model = *chunks_[static_cast<size_t>(chunk)];
    SeqInfo seq = sequences[static_cast<size_t>(microbatch)];
    seq.batch_begin = (dp_rank * microbatches + microbatch) * microbatch_size_;
    Tensor hidden = model.forward(rank, input ? input : batch.inputs(rank, microbatch), seq);
    if (!model.slice().head) return hidden;
    Tensor losses = model.token_losses(rank, hidden, batch.labels(rank, microbatch));
    double share = seq.loss_weight / static_cast<double>(seq.batch * seq.row_length);
    return ops::scale(rank, ops::sum(rank, losses), share);
  };
  std::vector<Tensor> losses = run_pipeline(ctx, shape, work, parallel_.group(Axis::pp));

  // Only the last stage has losses; the others add nothing.
  Tensor total = ctx.zeros({1}, DType::F64);
  for (const Tensor& loss : losses) {
    Tensor wide = ctx.empty({1}, DType::F64);
    ctx.kernels->copy(ctx.kernel_context(), {loss.view({1}), wide});
    ctx.kernels->binary(ctx.kernel_context(), {Binary::Add, total, wide, total});
  }
  parallel_.group(Axis::pp).all_reduce(total).wait();
  parallel_.group(Axis::dp_cp).all_reduce(total).wait();
  // On the meta device a step is made for its costs and memory alone.
  return ctx.device.is_meta() ? 0 : ctx.item(total);
}

StepReport RankTrainer::step(RankContext& ctx, std::span<const int64_t> tokens, double lr,
                             std::span<const int64_t> lengths, Documents documents) {
  for (Parameter* parameter : parameters()) parameter->sink.start_step();
  StepReport report;
  report.loss = run(ctx, micro_batches(tokens, lengths, documents), false);
  finish_gradients(ctx);
  for (auto& chunk : chunks_) chunk->finish_batch(ctx);
  auto all = parameters();
  Tensor norm = gradient_norm(ctx, all, model_parallel_, parallel_.group(Axis::pp));
  double limit = config_.optimizer.clip_grad;
  optimizer_->step(ctx, lr, limit > 0 ? clip_coefficient(ctx, norm, limit) : Tensor{});
  if (!ctx.device.is_meta()) report.grad_norm = ctx.item(norm);
  return report;
}

double RankTrainer::evaluate(RankContext& ctx, std::span<const int64_t> tokens,
                             std::span<const int64_t> lengths, Documents documents) {
  return run(ctx, micro_batches(tokens, lengths, documents), true);
}

void RankTrainer::finish_gradients(RankContext& ctx) {
  for (Parameter* parameter : parameters()) {
    if (!parameter->trainable) continue;
    const Tensor& grad = parameter->sink.main_grad;
    if (!parameter->sink.has_value()) ctx.kernels->fill(ctx.kernel_context(), {grad, 0});
    if (parameter->partial_over_tp)
      (parameter->expert ? model_parallel_.expert.tensor : model_parallel_.tensor.group)
          .all_reduce(grad)
          .wait();
  }
  // First and last stage each hold a copy of a tied weight, and part of its gradient.
  if (splits_tied_weight(pipeline_shape(config_, 1)))
    for (auto& chunk : chunks_)
      if (Parameter* tied = chunk->tied_weight())
        parallel_.group(Axis::embd).all_reduce(tied->sink.main_grad).wait();
  for (Parameter* parameter : parameters())
    if (parameter->trainable)
      parallel_.group(parameter->expert ? Axis::edp : Axis::dp_cp)
          .all_reduce(parameter->sink.main_grad)
          .wait();
}

}  // namespace megatron
