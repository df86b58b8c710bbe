#include "megatron/training/rank_trainer.h"

#include "megatron/optimizer/grad_norm.h"
#include "megatron/parallel/pipeline/executor.h"
#include "megatron/training/fp8_setup.h"
#include "megatron/training/optimizer_setup.h"

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
  ctx.deterministic = config.precision.deterministic_mode;
  PipelineShape shape = pipeline_shape(config, 1);
  for (int chunk = 0; chunk < shape.vpp; ++chunk)
    chunks_.push_back(
        std::make_unique<GptModel>(config.model, model_slice(config, shape, parallel.rank(Axis::pp), chunk),
                                   model_parallel_, dtype, chunk > 0 ? chunks_[0]->tied_weight() : nullptr));
  for (auto& chunk : chunks_) chunk->set_activation_plan(ActivationPlan::from(config.execution));
  choose_fp8(config, parameters());
  std::vector<DataParallelChunk> pieces;
  for (auto& chunk : chunks_)
    pieces.push_back({chunk->units(), splits_tied_weight(shape) ? chunk->tied_weight() : nullptr});
  data_parallel_ = std::make_unique<DataParallel>(ctx, data_parallel_options(config.ddp), parallel,
                                                  std::move(pieces), dtype);
  data_parallel_->initialize(ctx, static_cast<uint64_t>(config.rng.seed));
  optimizer_ = make_optimizer(ctx, config.optimizer, data_parallel_->slices());
}

std::vector<Parameter*> RankTrainer::parameters() {
  std::vector<Parameter*> all;
  for (auto& chunk : chunks_)
    for (Parameter* parameter : chunk->parameters()) all.push_back(parameter);
  return all;
}

void RankTrainer::values_changed() {
  for (Parameter* parameter : parameters())
    if (parameter->fp8) parameter->fp8->current = false;
}

MicroBatches RankTrainer::micro_batches(std::span<const int64_t> tokens, std::span<const int64_t> lengths,
                                        Documents documents) const {
  require(lengths.empty() || config_.parallel.variable_seq_lengths,
          "training step: micro-batches of different lengths need model.variable_seq_lengths");
  return {tokens, microbatch_size_, length_, lengths, documents, model_parallel_.context};
}

RankTrainer::Outcome RankTrainer::run(RankContext& ctx, const MicroBatches& batch, bool forward_only) {
  int64_t microbatches = batch.count();
  PipelineShape shape = pipeline_shape(config_, microbatches);
  shape.forward_only = forward_only;
  if (!forward_only) data_parallel_->start_step(microbatches);

  int dp = parallel_.size(Axis::dp), dp_rank = parallel_.rank(Axis::dp);
  std::vector<SeqInfo> sequences;
  for (int64_t i = 0; i < microbatches; ++i) {
    if (i > 0 && batch.rows(i) == batch.rows(i - 1)) {
      sequences.push_back(sequences.back());
      continue;
    }
    // Mostly every step's rows are alike, and so are their positions and angles.
    if (!known_rows_ || *known_rows_ != batch.rows(i)) {
      known_rows_ = batch.rows(i);
      known_sequences_ = chunks_[0]->sequences(ctx, *known_rows_);
    }
    SeqInfo& seq = sequences.emplace_back(known_sequences_);
    seq.seed = static_cast<uint64_t>(config_.rng.seed);
    seq.step = steps_taken();
    seq.training = !forward_only;
  }
  // The mean over micro-batches of their mean losses; or, per token, a sum that is divided at the end by the
  // tokens of all ranks.
  bool per_token = config_.model.calculate_per_token_loss;
  auto share = [&](int microbatch) {
    if (per_token) return 1.0;
    return data_parallel_->loss_factor() /
           static_cast<double>(std::max<int64_t>(1, batch.counted_labels(microbatch)) * microbatches * dp);
  };

  for (int i = 0; i < static_cast<int>(microbatches); ++i)
    sequences[static_cast<size_t>(i)].loss_weight = share(i) * static_cast<double>(batch.counted_labels(i));

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
    return model.loss_sum(rank, hidden, batch.labels(rank, microbatch), share(microbatch));
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
  Outcome outcome{.loss = total, .gradient_factor = {}};
  if (per_token) {
    int64_t count = 0;
    for (int64_t i = 0; i < microbatches; ++i) count += batch.counted_labels(i);
    Tensor all = ctx.full({1}, DType::F64, static_cast<double>(count));
    parallel_.group(Axis::dp).all_reduce(all).wait();
    outcome.gradient_factor = ctx.full({1}, DType::F64, 1);
    ctx.kernels->binary(ctx.kernel_context(),
                        {Binary::Div, outcome.gradient_factor, all, outcome.gradient_factor});
    ctx.kernels->binary(ctx.kernel_context(), {Binary::Mul, total, outcome.gradient_factor, total});
  } else if (data_parallel_->loss_factor() != 1) {
    Tensor factor = ctx.full({1}, DType::F64, data_parallel_->loss_factor());
    ctx.kernels->binary(ctx.kernel_context(), {Binary::Div, total, factor, total});
  }
  return outcome;
}

StepReport RankTrainer::step(RankContext& ctx, std::span<const int64_t> tokens, double lr,
                             std::span<const int64_t> lengths, Documents documents) {
  Outcome outcome = run(ctx, micro_batches(tokens, lengths, documents), false);
  data_parallel_->finish_gradients(ctx);
  for (auto& chunk : chunks_) chunk->finish_batch(ctx);
  if (outcome.gradient_factor) data_parallel_->scale_gradients(ctx, outcome.gradient_factor);
  Tensor norm = gradient_norm(ctx, slices(), parallel_, data_parallel_->sharding() != Sharding::None);
  double limit = config_.optimizer.clip_grad;
  optimizer_->step(ctx, lr, limit > 0 ? clip_coefficient(ctx, norm, limit) : Tensor{});
  data_parallel_->publish_parameters();
  values_changed();
  // On the meta device a step is made for its costs and memory alone. Elsewhere the host waits here, and
  // nowhere before.
  if (ctx.device.is_meta()) return {};
  Tensor both = ctx.empty({2}, DType::F64);
  ctx.kernels->copy(ctx.kernel_context(), {outcome.loss, both.slice(0, 0, 1)});
  ctx.kernels->copy(ctx.kernel_context(), {norm, both.slice(0, 1, 2)});
  auto values = ctx.to_vector<double>(both);
  return {values[0], values[1]};
}

void RankTrainer::set_weights(RankContext& ctx, const std::function<void()>& set) {
  data_parallel_->set_parameters(ctx, set);
  values_changed();
  optimizer_->read_parameters(ctx);
}

double RankTrainer::evaluate(RankContext& ctx, std::span<const int64_t> tokens,
                             std::span<const int64_t> lengths, Documents documents) {
  Tensor loss = run(ctx, micro_batches(tokens, lengths, documents), true).loss;
  return ctx.device.is_meta() ? 0 : ctx.item(loss);
}

}  // namespace megatron
