#include "megatron/training/step/rank_trainer.h"

#include "megatron/ops/shape.h"
#include "megatron/optimizer/grad_norm.h"
#include "megatron/parallel/pipeline/executor.h"
#include "megatron/training/setup/optimizer_setup.h"

namespace megatron {
namespace {

std::vector<Tensor> split_rows(RankContext& ctx, const Tensor& all, int64_t parts) {
  const int64_t rows = all.size(0) / parts;
  std::vector<Tensor> result;
  for (int64_t i = 0; i < parts; ++i) result.push_back(ops::slice(ctx, all, 0, i * rows, (i + 1) * rows));
  return result;
}

// Adds each MTP layer's share of its mean loss to what is reported.
void add_means(RankContext& ctx, std::span<const MtpTokens> tokens, const Tensor& means) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    Tensor mean = means.slice(0, at, at + 1), wide = ctx.empty({1}, DType::F64);
    ctx.kernels->copy(ctx.kernel_context(), {tokens[i].loss.view({1}), wide});
    ctx.kernels->axpby(ctx.kernel_context(),
                       {.alpha = tokens[i].share, .a = wide, .beta = 1, .b = mean, .out = mean});
  }
}

}  // namespace

RankTrainer::RankTrainer(RankContext& ctx, const Config& config, const ParallelContext& parallel, DType dtype)
    : config_(config),
      parallel_(parallel),
      model_(config, parallel, dtype),
      dtype_(dtype),
      microbatch_size_(config.train.micro_batch_size),
      length_(config.model.seq_length) {
  if (config.execution.cuda_graph_impl == GraphImpl::full_iteration) {
    if (!ctx.device.is_cuda() && !ctx.device.is_meta())
      throw ConfigError(
          "model.cuda_graph_impl = full_iteration: only a GPU can record a step; leave --cuda-graph-impl "
          "(--graphs) out");
    if (const std::string why = parallel.world().cannot_capture(); !why.empty())
      throw ConfigError(fmt::format(
          "model.cuda_graph_impl = full_iteration: the ranks cannot record their steps, for {}; give "
          "each rank a GPU of its own and use --comm nccl, or leave --cuda-graph-impl (--graphs) out",
          why));
    if (ctx.device.is_cuda())
      captured_ = std::make_unique<CudaGraphStep>(config.execution.cuda_graph_warmup_steps, parallel.world());
  }
  ctx.deterministic = config.precision.deterministic_mode;
  PipelineShape shape = pipeline_shape(config, 1);
  for (auto& chunk : model_.chunks()) chunk->set_activation_plan(ActivationPlan::from(config.execution));
  choose_fp8(config, parameters());
  if (config.precision.fp8 != Fp8Format::none && config.precision.fp8_recipe == Fp8Recipe::delayed)
    fp8_history_ = std::make_unique<Fp8History>(ctx, config.precision, parameters());
  const bool copies = embedding_holders(config, shape).size() > 1;
  std::vector<DataParallelChunk> pieces;
  for (auto& chunk : model_.chunks())
    pieces.push_back({chunk->units(), copies ? chunk->tied_weight() : nullptr});
  data_parallel_ = std::make_unique<DataParallel>(ctx, data_parallel_options(config.ddp), parallel,
                                                  std::move(pieces), dtype);
  data_parallel_->initialize(ctx, static_cast<uint64_t>(config.rng.seed));
  optimizer_ = make_optimizer(ctx, config.optimizer, config.model, data_parallel_->slices());
}

void RankTrainer::values_changed() {
  for (Parameter* parameter : parameters())
    if (parameter->fp8) parameter->fp8->current = false;
}

MicroBatches RankTrainer::micro_batches(std::span<const int64_t> tokens, std::span<const int64_t> lengths,
                                        Documents documents) const {
  require(lengths.empty() || config_.parallel.variable_seq_lengths,
          "training step: micro-batches of different lengths need model.variable_seq_lengths");
  return {tokens, microbatch_size_, length_, lengths, documents, model_.parallel().context};
}

// Each MTP layer's mean loss counts as much as the others', all together by their factor.
std::vector<MtpTokens> RankTrainer::mtp_tokens(RankContext& ctx, const MicroBatches& batch,
                                               int64_t microbatch, double share) const {
  const int64_t layers = config_.model.mtp_num_layers;
  const double each = config_.model.mtp_loss_scaling_factor / static_cast<double>(layers) * share *
                      static_cast<double>(batch.counted_labels(microbatch));
  const double batches = static_cast<double>(batch.count() * parallel_.size(Axis::dp));
  std::vector<MtpTokens> tokens;
  for (int64_t depth = 1; depth <= layers; ++depth) {
    MicroBatches::Mtp mtp = batch.mtp(ctx, microbatch, depth);
    const double count = static_cast<double>(std::max<int64_t>(1, mtp.counted_labels));
    tokens.push_back(
        {.ids = mtp.ids, .labels = mtp.labels, .weight = each / count, .share = 1 / (count * batches)});
  }
  return tokens;
}

// Mostly every step's rows are alike, and so are their positions and angles.
const SeqInfo& RankTrainer::sequences_of(RankContext& ctx, const TokenRows& rows) {
  if (!known_rows_ || *known_rows_ != rows) {
    known_rows_ = rows;
    known_sequences_ = model_.chunks()[0]->sequences(ctx, rows);
  }
  return known_sequences_;
}

RankTrainer::Outcome RankTrainer::run(RankContext& ctx, const MicroBatches& batch, bool forward_only,
                                      const StepTokens* fixed) {
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
    SeqInfo& seq = sequences.emplace_back(sequences_of(ctx, batch.rows(i)));
    seq.seed = static_cast<uint64_t>(config_.rng.seed);
    if (fixed)
      seq.step_offset = fixed->step_offset;
    else
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

  Tensor mtp;
  if (config_.model.mtp_num_layers > 0 && !forward_only)
    mtp = ctx.zeros({config_.model.mtp_num_layers}, DType::F64);

  PipelineWork work;
  work.dtype = dtype_;
  work.overlap = config_.parallel.overlap_p2p_comm.value_or(true);
  work.captured = fixed != nullptr;
  int64_t split = model_.parallel().tensor.splits_tokens() ? model_.parallel().tensor.size() : 1;
  // Behind the stage of the MTP layers, what they made travels on beside the hidden states.
  const int predicting = mtp_stage(config_, shape);
  if (!config_.parallel.variable_seq_lengths)
    work.input_shape = [&, rows = sequences[0].tokens() / split](int stage) {
      const bool wide = mtp && stage > predicting;
      return Shape{rows * (wide ? 1 + mtp.numel() : 1), config_.model.hidden_size};
    };
  work.forward = [&](RankContext& rank, int chunk, int microbatch, const Tensor& input) {
    GptModel& model = *model_.chunks()[static_cast<size_t>(chunk)];
    SeqInfo seq = sequences[static_cast<size_t>(microbatch)];
    seq.batch_begin = (dp_rank * microbatches + microbatch) * microbatch_size_;
    const auto at = static_cast<size_t>(microbatch);
    auto ids = [&] { return fixed ? fixed->ids[at] : batch.inputs(rank, microbatch); };
    Tensor hidden = model.forward(rank, input ? input : ids(), seq);
    const ModelSlice& slice = model.slice();
    if (mtp && (slice.mtp || slice.head)) {
      std::vector<MtpTokens> tokens = mtp_tokens(rank, batch, microbatch, share(microbatch));
      std::vector<Tensor> states =
          slice.mtp ? model.run_mtp(rank, hidden, tokens, seq) : split_rows(rank, hidden, 1 + mtp.numel());
      if (!slice.head) {
        states.insert(states.begin(), hidden);
        return ops::concat(rank, states, 0);
      }
      if (!slice.mtp) {
        hidden = states[0];
        states.erase(states.begin());
      }
      hidden = model.add_mtp_losses(rank, hidden, states, tokens);
      add_means(rank, tokens, mtp);
    }
    if (!slice.head) return hidden;
    Tensor labels = fixed ? fixed->labels[at] : batch.labels(rank, microbatch);
    return model.loss_sum(rank, hidden, labels, share(microbatch));
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
  if (mtp) {
    parallel_.group(Axis::pp).all_reduce(mtp).wait();
    parallel_.group(Axis::dp_cp).all_reduce(mtp).wait();
  }
  Outcome outcome{.loss = total, .gradient_factor = {}, .mtp = mtp, .gradient_norm = {}};
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

RankTrainer::Outcome RankTrainer::make_gradients(RankContext& ctx, const MicroBatches& batch,
                                                 const StepTokens* fixed) {
  Outcome outcome = run(ctx, batch, false, fixed);
  {
    const TraceRange range(ctx.tracer, "finish gradients");
    data_parallel_->finish_gradients(ctx);
  }
  for (auto& chunk : model_.chunks()) chunk->finish_batch(ctx);
  const TraceRange range(ctx.tracer, "gradient norm");
  outcome.gradient_norm =
      gradient_norm(ctx, slices(), parallel_, data_parallel_->sharding() != Sharding::None);
  if (outcome.gradient_factor)
    ctx.kernels->binary(ctx.kernel_context(),
                        {Binary::Mul, outcome.gradient_norm, outcome.gradient_factor, outcome.gradient_norm});
  return outcome;
}

StepReport RankTrainer::step(RankContext& ctx, std::span<const int64_t> tokens, double lr,
                             std::span<const int64_t> lengths, Documents documents) {
  const TraceRange range(ctx.tracer, "step");
  const MicroBatches batch = micro_batches(tokens, lengths, documents);
  if (captured_) {
    sequences_of(ctx, batch.rows(0));     // what comes from the host cannot be captured
    data_parallel_->finish_parameters();  // nor can what is under way be waited for
  }
  const bool replayed = captured_ && captured_->run(ctx, batch, steps_taken(), [&](const StepTokens& fixed) {
    values_changed();  // so that fp8 forms are always made
    captured_sequences_ = known_sequences_;
    captured_outcome_ = make_gradients(ctx, batch, &fixed);
  });
  const Outcome outcome = replayed ? captured_outcome_ : make_gradients(ctx, batch);
  const Tensor& norm = outcome.gradient_norm;
  // The optimizer multiplies as it reads: gradients themselves would be rounded once more where they are
  // narrow.
  gradient_factor_ = outcome.gradient_factor;
  {
    const TraceRange update(ctx.tracer, "optimizer");
    Tensor scale = gradient_factor_;
    if (double limit = config_.optimizer.clip_grad; limit > 0) {
      scale = clip_coefficient(ctx, norm, limit);
      if (gradient_factor_)
        ctx.kernels->binary(ctx.kernel_context(), {Binary::Mul, scale, gradient_factor_, scale});
    }
    optimizer_->step(ctx, lr, scale);
  }
  data_parallel_->publish_parameters();
  if (fp8_history_) fp8_history_->finish_step(ctx, parallel_);
  values_changed();
  // On the meta device a step is made for its costs and memory alone. Elsewhere the host waits here, and
  // nowhere before.
  if (ctx.device.is_meta()) return {};
  const int64_t layers = outcome.mtp ? outcome.mtp.numel() : 0;
  Tensor all = ctx.empty({2 + layers}, DType::F64);
  ctx.kernels->copy(ctx.kernel_context(), {outcome.loss, all.slice(0, 0, 1)});
  ctx.kernels->copy(ctx.kernel_context(), {norm, all.slice(0, 1, 2)});
  if (outcome.mtp) ctx.kernels->copy(ctx.kernel_context(), {outcome.mtp, all.slice(0, 2, 2 + layers)});
  auto values = ctx.to_vector<double>(all);
  parallel_.world().require_running();  // else they are what a stopped step left there
  return {values[0], values[1], {values.begin() + 2, values.end()}};
}

void RankTrainer::set_weights(RankContext& ctx, const std::function<void()>& set) {
  data_parallel_->set_parameters(ctx, set);
  values_changed();
  optimizer_->read_parameters(ctx);
}

double RankTrainer::evaluate(RankContext& ctx, std::span<const int64_t> tokens,
                             std::span<const int64_t> lengths, Documents documents) {
  const TraceRange range(ctx.tracer, "evaluate");
  Tensor loss = run(ctx, micro_batches(tokens, lengths, documents), true).loss;
  if (ctx.device.is_meta()) return 0;
  const double value = ctx.item(loss);
  parallel_.world().require_running();
  return value;
}

}  // namespace megatron
