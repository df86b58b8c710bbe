#include "megatron/training/step/rank_trainer.h"

#include <cmath>
#include <map>

#include "megatron/base/refuse.h"
#include "megatron/config/resolve/captured_step.h"
#include "megatron/models/objectives/bert_objective.h"
#include "megatron/models/objectives/distillation_objective.h"
#include "megatron/models/objectives/grpo_objective.h"
#include "megatron/models/objectives/lm_objective.h"
#include "megatron/models/objectives/recorded_teacher_objective.h"
#include "megatron/ops/cross_entropy.h"
#include "megatron/optimizer/grad_norm.h"
#include "megatron/optimizer/update_gate.h"
#include "megatron/parallel/upload_ahead.h"
#include "megatron/training/setup/optimizer_setup.h"
#include "megatron/training/step/fake_quant_setup.h"
#include "megatron/training/step/recorded_teacher.h"
#include "megatron/training/step/replayed_experts.h"
#include "megatron/training/step/train_target.h"

namespace megatron {

// Forward passes of all micro-batches of a step, and backward passes unless `forward_only`.
struct RankTrainer::Passes {
  RankTrainer& trainer;
  std::span<const Batch> batches;
  StepKey key;
  bool forward_only = false;
  std::span<const MicroBatch> fixed = {};  // on the device already: what a CUDA graph reads
  LogitObserver observer = {};

  int64_t all_batches() const {
    return key.batches > 0 ? key.batches
                           : static_cast<int64_t>(batches.size()) * trainer.parallel_.replicas();
  }
  bool per_token() const { return trainer.config_.model.calculate_per_token_loss; }

  // The loss is the mean over micro-batches of their mean losses; or, per token, a sum that is divided at the
  // end by the tokens of all ranks.
  LossFactors factors(const Batch& batch) const {
    const ModelConfig& model = trainer.config_.model;
    LossFactors result{.batches = static_cast<double>(all_batches())};
    const double labels = batch.label_weight();
    if (!per_token())
      result.label = trainer.data_parallel_->loss_factor() / ((labels > 0 ? labels : 1) * result.batches);
    if (!forward_only) result.label *= trainer.loss_scale_.value();
    if (model.mtp_num_layers > 0)
      result.mtp = model.mtp_loss_scaling_factor / static_cast<double>(model.mtp_num_layers);
    return result;
  }

  StageNeeds needs(const ModelChunk& chunk) const {
    const ModelSlice& slice = chunk.slice();
    const bool mtp = (slice.mtp || slice.head) && !forward_only;
    return {.ids = slice.embedding,
            .labels = slice.head,
            .mtp_layers = mtp ? trainer.config_.model.mtp_num_layers : 0,
            .extra = chunk.extra_inputs()};
  }
  StageNeeds needs_of_rank() const {
    StageNeeds all{.ids = false, .labels = false};
    for (const ModelChunk* chunk : trainer.model_.chunks()) {
      const StageNeeds own = needs(*chunk);
      all.ids |= own.ids;
      all.labels |= own.labels;
      all.mtp_layers = std::max(all.mtp_layers, own.mtp_layers);
      all.extra.insert(all.extra.end(), own.extra.begin(), own.extra.end());
    }
    return all;
  }

  // Which of a micro-batch's tokens this rank has; empty: all.
  std::vector<int64_t> held(const Batch& batch) const {
    const ContextParallel& context = trainer.model_.parallel().context;
    return context.size() > 1 ? held_tokens(rows_of(batch), context) : std::vector<int64_t>{};
  }

  SeqInfo sequences(RankContext& ctx, const Batch& batch) const {
    SeqInfo seq = trainer.sequences_of(ctx, rows_of(batch));
    const ModelConfig& model = trainer.config_.model;
    if (model.has_tower())
      add_images(ctx, model, batch.ids, batch.rows, batch.image_grids(), trainer.dtype_, seq, held(batch),
                 batch.lengths);
    seq.seed = static_cast<uint64_t>(trainer.config_.rng.seed);
    seq.step = key.iteration;
    seq.batch_begin = batch.first;
    seq.training = !forward_only;
    seq.replayed_experts = replayed_experts(ctx, batch);
    const bool adds_losses =
        model.num_moe_experts > 0 || model.dsa_indexer_loss_coeff > 0 || trainer.config_.elastic.flextron;
    if (adds_losses && !forward_only)
      seq.aux_loss_weight = ctx.full({1}, DType::F64, factors(batch).label * batch.label_weight());
    return seq;
  }

  MicroBatch upload(RankContext& ctx, const Batch& batch, const StageNeeds& what, const SeqInfo& seq,
                    const Stream& copies) const {
    MicroBatch micro = to_device(ctx, batch, trainer.model_.parallel().context, what, factors(batch),
                                 accumulation_dtype(trainer.dtype_), copies);
    micro.seq = seq;
    const ModelConfig& model = trainer.config_.model;
    if (what.labels && !forward_only)
      upload_recording(ctx, batch, held(batch), accumulation_dtype(trainer.dtype_), copies, micro);
    if (model.has_tower() && what.ids)
      upload_images(ctx, model, batch, held(batch), !forward_only && trainer.tower_learns(), copies, micro);
    return micro;
  }

  StageTokens tokens(const Batch& batch) const {
    const auto source = batch.extra.find("encoder_mask");
    return {.own = std::ssize(batch.ids) / trainer.model_.parallel().context.size(),
            .source = source != batch.extra.end() ? source->second.numel() : 0};
  }

  // All that this rank's chunks need, with the iteration's random numbers in a tensor.
  std::vector<MicroBatch> upload_all(RankContext& ctx) const {
    const Tensor offset =
        ctx.from_vector<int64_t>({static_cast<int64_t>(dropout_stream(key.iteration, 0, 0))}, {1});
    std::vector<MicroBatch> all;
    for (const Batch& batch : batches) {
      SeqInfo seq = sequences(ctx, batch);
      seq.step = 0;
      seq.step_offset = offset;
      all.push_back(upload(ctx, batch, needs_of_rank(), seq, ctx.stream));
      cast_pixels(ctx, trainer.dtype_, all.back());
    }
    return all;
  }

  Tensor observed_loss(RankContext& ctx, const Tensor& hidden, const MicroBatch& micro) const {
    Head& head = *trainer.model_.head();
    const Tensor logits = head.logits(ctx, hidden);
    observer(head, logits, micro);
    return ops::weighted_sum(ctx, head.logit_losses(ctx, logits, micro.labels), micro.weights);
  }

  Gradients run(RankContext& ctx) const;
};

std::unique_ptr<Objective> RankTrainer::make_objective(const TrainerOptions& options) {
  const ModelConfig& model = config_.model;
  require_input(!options.objective || !teacher_,
                "--export-kd-teacher-load: the program has an objective of its own, which asks no teacher; "
                "leave it out");
  if (options.objective) return options.objective(config_);
  if (const RlConfig& rl = config_.rl; rl.perform_rl_step)
    return std::make_unique<GrpoObjective>(GrpoOptions{.clamp_lower = rl.grpo_clamp_eps_lower,
                                                       .clamp_upper = rl.grpo_clamp_eps_upper,
                                                       .kl_beta = rl.grpo_kl_beta,
                                                       .entropy_weight = rl.grpo_entropy_term_weight});
  if (teacher_) {
    const DistillConfig& distill = config_.distill;
    return std::make_unique<DistillationObjective>(
        teacher_->head(), DistillationOptions{.skip_lm_loss = distill.skip_lm_loss,
                                              .kd_loss_scale = distill.kd_loss_scale,
                                              .temperature = distill.logit_kl_temperature,
                                              .mtp_layers = model.mtp_num_layers,
                                              .context = model_.parallel().context.group});
  }
  if (config_.distill.learns_from_recording())
    return std::make_unique<RecordedTeacherObjective>(config_.distill.logits_load_kd_loss_alpha,
                                                      model.mtp_num_layers);
  if (model.model_type == ModelType::bert && model.bert_binary_head) return std::make_unique<BertObjective>();
  return std::make_unique<LmObjective>(model.mtp_num_layers);
}

RankTrainer::RankTrainer(RankContext& ctx, const Config& config, const ParallelContext& parallel, DType dtype,
                         const TrainerOptions& options)
    : config_(config),
      parallel_(parallel),
      model_(config, parallel, dtype),
      dtype_(dtype),
      copies_(ctx.runtime),
      teacher_(options.teacher
                   ? std::make_unique<Teacher>(ctx, teacher_config(config, *options.teacher), parallel, dtype)
                   : nullptr),
      objective_(make_objective(options)),
      terms_(objective_->terms()),
      aux_losses_(config.model, reports_budget_loss(config.elastic)) {
  if (config.execution.cuda_graph_impl == GraphImpl::full_iteration) {
    if (!ctx.device.is_cuda() && !ctx.device.is_meta())
      throw ConfigError(
          "model.cuda_graph_impl = full_iteration: CUDA graph capture needs a GPU; leave --cuda-graph-impl "
          "(--graphs) out");
    if (const std::string why = parallel.world().cannot_capture(); !why.empty())
      throw ConfigError(fmt::format(
          "model.cuda_graph_impl = full_iteration: CUDA graph capture unavailable: {}; give "
          "each rank a GPU of its own and use --comm nccl, or leave --cuda-graph-impl (--graphs) out",
          why));
  }
  if (captures_steps(config) && ctx.device.is_cuda() && parallel.world().cannot_capture().empty())
    graph_ = std::make_unique<CudaGraphStep>(config.execution.cuda_graph_warmup_steps, parallel.world());
  ctx.deterministic = config.precision.deterministic_mode;
  ctx.batch_invariant = config.precision.batch_invariant_mode;
  if (options.prepare) options.prepare(model_);
  PipelineShape shape = pipeline_shape(config, 1);
  for (ModelChunk* chunk : model_.chunks())
    chunk->set_activation_plan(ActivationPlan::from(config.execution));
  freeze_other_side(config.distill.qad_train_target, model_);
  choose_fp8(config, parameters());
  choose_fake_quantizers(config, parameters(), parallel);
  if (config.precision.fp8 != Fp8Format::none && config.precision.fp8_recipe == Fp8Recipe::delayed)
    fp8_history_ = std::make_unique<Fp8History>(ctx, config.precision, parameters());
  const bool copies = embedding_holders(config, shape).size() > 1;
  std::vector<DataParallelChunk> pieces;
  for (ModelChunk* chunk : model_.chunks())
    pieces.push_back({chunk->units(), copies ? chunk->tied_weight() : nullptr});
  data_parallel_ = std::make_unique<DataParallel>(ctx, data_parallel_options(config.ddp), parallel,
                                                  std::move(pieces), dtype);
  if (options.weights_follow)
    for (Parameter* parameter : parameters()) parameter->initializer = Initializer::constant(0);
  data_parallel_->initialize(ctx, static_cast<uint64_t>(config.rng.seed));
  optimizer_ = make_optimizer(ctx, config, parallel, *data_parallel_);
  if (config.model.qk_clip) {
    std::vector<QkClipTarget*> targets;
    for (ModelChunk* chunk : model_.chunks())
      for (QkClipTarget* target : chunk->qk_clip_targets()) targets.push_back(target);
    qk_clip_ = std::make_unique<QkClip>(ctx, config.model, std::move(targets), parallel);
  }
  if (config.precision.fp16) loss_scale_ = LossScale(loss_scale_options(config.optimizer));
}

bool RankTrainer::tower_learns() {
  for (const std::unique_ptr<GptModel>& chunk : model_.decoders())
    if (chunk->tower() && chunk->tower()->learns()) return true;
  return false;
}

void RankTrainer::values_changed() {
  for (Parameter* parameter : parameters()) {
    if (parameter->fp8) parameter->fp8->current = false;
    if (parameter->fake_quantizer) parameter->fake_quantizer->forget();
  }
}

std::vector<Batch> RankTrainer::batches_of(std::span<const int64_t> tokens, std::span<const int64_t> lengths,
                                           Documents documents) const {
  const int64_t size = config_.train.micro_batch_size, length = config_.model.seq_length;
  std::vector<Batch> batches = batches_of_tokens(tokens, size, length, lengths, documents);
  const int64_t first = static_cast<int64_t>(batches.size()) * size * parallel_.replica();
  for (Batch& batch : batches) batch.first += first;
  return batches;
}

// Mostly every step's rows are alike, and so are their positions and angles.
SeqInfo RankTrainer::sequences_of(RankContext& ctx, const TokenRows& rows) {
  if (!known_rows_ || *known_rows_ != rows) {
    known_rows_ = rows;
    known_sequences_ = model_.chunks()[0]->sequences(ctx, rows);
  }
  return known_sequences_;
}

Gradients RankTrainer::Passes::run(RankContext& ctx) const {
  const ParallelContext& parallel = trainer.parallel_;
  DataParallel& data_parallel = *trainer.data_parallel_;
  std::vector<Tensor> taught;
  if (trainer.teacher_ && !forward_only) taught = trainer.teacher_->hidden_states(ctx, batches);
  if (!forward_only) data_parallel.start_step(std::ssize(batches));

  std::vector<SeqInfo> seqs;  // made before the passes: what they share is made once
  if (fixed.empty())
    for (const Batch& batch : batches) seqs.push_back(sequences(ctx, batch));
  std::map<const ModelChunk*, UploadAhead> uploads;
  if (fixed.empty())
    for (const ModelChunk* chunk : trainer.model_.chunks())
      uploads.try_emplace(chunk, ctx, trainer.copies_, static_cast<int>(batches.size()),
                          [&, chunk](int microbatch, const Stream& copies) {
                            const auto at = static_cast<size_t>(microbatch);
                            return upload(ctx, batches[at], needs(*chunk), seqs[at], copies);
                          });
  const auto micro_batch = [&](RankContext& rank, int microbatch, const ModelChunk& chunk) {
    if (!fixed.empty()) return fixed[static_cast<size_t>(microbatch)];
    MicroBatch micro = uploads.at(&chunk).take(microbatch);
    cast_pixels(rank, trainer.dtype_, micro);
    if (chunk.slice().head && !taught.empty())
      micro.taught = std::move(taught[static_cast<size_t>(microbatch)]);
    return micro;
  };
  std::vector<Tensor> terms;
  for (size_t i = 0; i < trainer.terms_.size(); ++i) terms.push_back(ctx.zeros({1}, DType::F64));

  const std::vector<Tensor> losses = trainer.model_.run(
      ctx, {.microbatches = static_cast<int>(batches.size()),
            .forward_only = forward_only,
            .captured = !fixed.empty(),
            .tokens = [&](int microbatch) { return tokens(batches[static_cast<size_t>(microbatch)]); },
            .micro_batch = micro_batch,
            .last =
                [&](RankContext& rank, const StageTensors& states, const MicroBatch& micro) {
                  if (observer) return observed_loss(rank, states[0], micro);
                  return trainer.objective_->loss(rank, *trainer.model_.head(), states, micro, terms);
                }});

  // Only the last stage has losses; the others add nothing.
  const auto count = static_cast<int64_t>(terms.size());
  Tensor all = ctx.zeros({1 + count}, DType::F64), total = all.slice(0, 0, 1);
  const Tensor weighted = all.slice(0, 0, 1 + trainer.weighted_terms());
  for (const Tensor& loss : losses) {
    Tensor wide = ctx.empty({1}, DType::F64);
    ctx.kernels->copy(ctx.kernel_context(), {loss.view({1}), wide});
    ctx.kernels->binary(ctx.kernel_context(), {Binary::Add, total, wide, total});
  }
  for (int64_t i = 0; i < count; ++i)
    ctx.kernels->copy(ctx.kernel_context(), {terms[static_cast<size_t>(i)], all.slice(0, 1 + i, 2 + i)});
  parallel.group(Axis::pp).all_reduce(all).wait();
  parallel.sum_over_replicas(all, Axis::dp_cp);
  if (const double factor = data_parallel.loss_factor(); factor != 1 && !per_token()) {
    const Tensor divisor = ctx.full({1}, DType::F64, factor).expand(weighted.shape());
    ctx.kernels->binary(ctx.kernel_context(), {Binary::Div, weighted, divisor, weighted});
  }
  return {.loss = total,
          .terms = count > 0 ? all.slice(0, 1, 1 + count) : Tensor{},
          .aux = {},
          .norm = {},
          .zeros = {},
          .mtp_norm = {},
          .factor = {}};
}

namespace {

bool of_mtp_layer(const ParameterSlice& slice) { return slice.parameter->name.starts_with("mtp."); }

}  // namespace

Gradients RankTrainer::make_gradients(RankContext& ctx, const Passes& passes) {
  Gradients result = passes.run(ctx);
  {
    const TraceRange range(ctx.tracer, "finish gradients");
    data_parallel_->finish_gradients(ctx);
  }
  for (ModelChunk* chunk : model_.chunks()) chunk->finish_batch(ctx);
  result.aux = aux_losses_.means(ctx, model_.chunks(), parallel_, passes.all_batches());
  const TraceRange range(ctx.tracer, "gradient norm");
  const bool sharded = data_parallel_->sharding() != Sharding::None;
  const std::span<const ParameterSlice> counted = data_parallel_->reduced_slices();
  if (config_.model.mtp_num_layers > 0 && config_.model.mtp_detach_heads) {
    std::vector<ParameterSlice> own, detached;
    for (const ParameterSlice& slice : counted) (of_mtp_layer(slice) ? detached : own).push_back(slice);
    result.norm = gradient_norm(ctx, own, parallel_, sharded);
    result.mtp_norm = gradient_norm(ctx, detached, parallel_, sharded);
  } else {
    result.norm = gradient_norm(ctx, counted, parallel_, sharded);
  }
  if (config_.logger.log_num_zeros_in_grad) result.zeros = gradient_zeros(ctx, counted, parallel_, sharded);
  return result;
}

namespace {

// 1 / the labels of all replicas, of which this one has `own`.
Tensor per_label_factor(RankContext& ctx, double own, const ParallelContext& parallel) {
  Tensor labels = ctx.full({1}, DType::F64, own), factor = ctx.full({1}, DType::F64, 1);
  parallel.sum_over_replicas(labels, Axis::dp);
  Tensor none = ctx.full({1}, DType::F64, 1e-30);  // a batch without labels has loss 0, not 0/0
  ctx.kernels->binary(ctx.kernel_context(), {Binary::Max, labels, none, labels});
  ctx.kernels->binary(ctx.kernel_context(), {Binary::Div, factor, labels, factor});
  return factor;
}

Tensor times(RankContext& ctx, const Tensor& a, const Tensor& b) {
  Tensor result = ctx.empty(a.shape(), a.dtype());
  ctx.kernels->binary(ctx.kernel_context(), {Binary::Mul, a, b, result});
  return result;
}

double labels_of(std::span<const Batch> batches) {
  double sum = 0;
  for (const Batch& batch : batches) sum += batch.label_weight();
  return sum;
}

void check_batches(std::span<const Batch> batches, const Config& config) {
  require(!batches.empty(), "training step: there are no micro-batches");
  for (const Batch& batch : batches) {
    batch.check();
    const auto routed = batch.extra.find(kRoutedExperts);
    if (routed != batch.extra.end())
      check_routed_experts(routed->second, static_cast<int64_t>(batch.ids.size()), config.model);
    require(batch.extra.empty() || config.model.masks_text() || config.model.has_tower() ||
                batch.extra.contains(kRecordedTokens) ||
                (batch.extra.size() == 1 && routed != batch.extra.end()),
            "training step: a batch has extra tensors, which BERT, T5 and models with a vision tower read");
    require(batch.ids.size() == batches[0].ids.size() || config.parallel.variable_seq_lengths,
            "training step: micro-batches of different lengths need model.variable_seq_lengths");
  }
}

}  // namespace

Gradients RankTrainer::gradients(RankContext& ctx, std::span<const Batch> batches, const StepKey& key) {
  const TraceRange range(ctx.tracer, "gradients");
  check_batches(batches, config_);
  if (fp8_history_) fp8_history_->start_step(ctx);
  if (graph_) data_parallel_->finish_parameters();  // a graph cannot wait for what began before it
  const Passes passes{*this, batches, key};
  const bool replayed = graph_ && graph_->run(
                                      ctx, batches, [&] { return passes.upload_all(ctx); },
                                      [&](std::span<const MicroBatch> fixed) {
                                        values_changed();  // so that fp8 forms are always made
                                        captured_ = make_gradients(ctx, {*this, batches, key, false, fixed});
                                      });
  Gradients result = replayed ? captured_ : make_gradients(ctx, passes);
  unscale(ctx, result, labels_of(batches));
  // The optimizer multiplies as it reads: gradients themselves would be rounded once more where they are
  // narrow.
  gradient_factor_ = result.factor;
  return result;
}

// Loss and norm are those of the loss itself, not of what backward began with: `labels` of this replica times
// the loss scale. A CUDA graph knows neither.
void RankTrainer::unscale(RankContext& ctx, Gradients& gradients, double labels) {
  if (config_.model.calculate_per_token_loss) gradients.factor = per_label_factor(ctx, labels, parallel_);
  if (const double scale = loss_scale_.value(); scale != 1) {
    const Tensor inverse = ctx.full({1}, DType::F64, 1 / scale);
    gradients.factor = gradients.factor ? times(ctx, gradients.factor, inverse) : inverse;
  }
  if (!gradients.factor) return;
  gradients.loss = times(ctx, gradients.loss, gradients.factor);
  if (const int64_t weighted = weighted_terms(); weighted > 0) {
    const Tensor own = gradients.terms.slice(0, 0, weighted), terms = ctx.empty_like(gradients.terms);
    ctx.kernels->copy(ctx.kernel_context(), {gradients.terms, terms});
    ctx.kernels->binary(ctx.kernel_context(), {Binary::Mul, own, gradients.factor.expand(own.shape()),
                                               terms.slice(0, 0, weighted)});
    gradients.terms = terms;
  }
  gradients.norm = times(ctx, gradients.norm, gradients.factor);
  if (gradients.mtp_norm) gradients.mtp_norm = times(ctx, gradients.mtp_norm, gradients.factor);
}

// Detached MTP layers are clipped by their own norm: their gradients are multiplied by what the optimizer's
// factor of all others lacks.
void RankTrainer::clip_mtp_layers(RankContext& ctx, const Gradients& gradients, const Tensor& coefficient) {
  const auto kernels = ctx.kernel_context();
  const Tensor ratio = clip_coefficient(ctx, gradients.mtp_norm, config_.optimizer.clip_grad);
  ctx.kernels->binary(kernels, {Binary::Div, ratio, coefficient, ratio});
  for (const ParameterSlice& slice : data_parallel_->slices()) {
    if (!of_mtp_layer(slice)) continue;
    const Tensor factor = ctx.empty({1}, slice.gradient.dtype());
    ctx.kernels->copy(kernels, {ratio, factor});
    const Tensor flat = slice.gradient.view({slice.gradient.numel()});
    ctx.kernels->binary(kernels, {Binary::Mul, flat, factor.expand(flat.shape()), flat});
  }
}

StepReport RankTrainer::update(RankContext& ctx, const Gradients& gradients, const Rates& rates,
                               const BeforeChange& before) {
  const TraceRange range(ctx.tracer, "update");
  Tensor norm = gradients.norm;
  if (gradients.mtp_norm) {  // what is no number closes the gate
    const Tensor none = ctx.zeros({1}, DType::F64);
    norm = times(ctx, gradients.mtp_norm, none);
    ctx.kernels->binary(ctx.kernel_context(), {Binary::Add, gradients.norm, norm, norm});
  }
  const Tensor gate =
      update_gate(ctx, gradients.loss, norm,
                  config_.optimizer.grad_norm_skip_threshold.value_or(std::numeric_limits<double>::max()));
  {
    const TraceRange update(ctx.tracer, "optimizer");
    Tensor scale = gradients.factor;
    if (double limit = config_.optimizer.clip_grad; limit > 0) {
      scale = clip_coefficient(ctx, gradients.norm, limit);
      if (gradients.mtp_norm) clip_mtp_layers(ctx, gradients, scale);
      if (gradients.factor)
        ctx.kernels->binary(ctx.kernel_context(), {Binary::Mul, scale, gradients.factor, scale});
    }
    if (before) {
      optimizer_->step_by_groups(ctx, rates, scale, gate, before);
      before({});
    } else {
      optimizer_->step(ctx, rates, scale, gate);
    }
    if (qk_clip_) qk_clip_->clip(ctx, *optimizer_, gate);
  }
  for (ModelChunk* chunk : model_.chunks()) chunk->update_expert_bias(ctx, gate);
  {
    const TraceRange publish(ctx.tracer, "publish parameters");
    data_parallel_->publish_parameters(ctx);
  }
  if (fp8_history_) fp8_history_->finish_step(ctx, parallel_, gate);
  values_changed();
  Tensor params_norm;
  if (config_.logger.log_params_norm)
    params_norm = parameter_norm(ctx, optimizer_->master_slices(), parallel_,
                                 data_parallel_->sharding() != Sharding::None);
  // On the meta device a step is made for its costs and memory alone. Elsewhere the host waits here, and
  // nowhere before.
  if (ctx.device.is_meta()) return {};
  const auto terms = static_cast<int64_t>(terms_.size()),
             aux = static_cast<int64_t>(aux_losses_.names().size());
  Tensor all = ctx.zeros({4 + terms + aux}, DType::F64);
  const auto put = [&](const Tensor& from, int64_t at) {
    if (from) ctx.kernels->copy(ctx.kernel_context(), {from, all.slice(0, at, at + from.numel())});
  };
  put(gradients.loss, 0);
  put(gradients.norm, 1);
  put(gradients.zeros, 2);
  put(params_norm, 3);
  put(gradients.terms, 4);
  put(gradients.aux, 4 + terms);
  const auto values = ctx.to_vector<double>(all);
  parallel_.world().require_running();  // else they are what a stopped step left there
  StepReport report{.loss = values[0], .grad_norm = values[1], .terms = {}};
  if (gradients.zeros) report.num_zeros = values[2];
  if (params_norm) report.params_norm = values[3];
  const auto add_terms = [&](const std::vector<std::string>& names) {
    for (const std::string& name : names) report.terms.push_back({name, values[4 + report.terms.size()]});
  };
  add_terms(terms_);
  add_terms(aux_losses_.names());
  finish_report(report);
  return report;
}

// Says what the gate decided, and sets back what moved on regardless.
void RankTrainer::finish_report(StepReport& report) {
  const bool finite = std::isfinite(report.loss) && std::isfinite(report.grad_norm);
  if (!finite)
    report.update = config_.precision.fp16 ? Update::overflow : Update::not_finite;
  else if (const auto limit = config_.optimizer.grad_norm_skip_threshold; limit && report.grad_norm > *limit)
    report.update = Update::large_norm;
  loss_scale_.update(!finite);
  report.loss_scale = loss_scale_.value();
  if (report.update == Update::taken) return;
  optimizer_->set_steps(optimizer_->steps() - 1);
  if (fp8_history_ && optimizer_->steps() == 0) fp8_history_->forget_scales();
}

StepReport RankTrainer::step(RankContext& ctx, std::span<const Batch> batches, const Rates& rates) {
  const TraceRange range(ctx.tracer, "step");
  return update(ctx, gradients(ctx, batches, {.iteration = steps_taken()}), rates);
}

StepReport RankTrainer::step(RankContext& ctx, std::span<const int64_t> tokens, const Rates& rates,
                             std::span<const int64_t> lengths, Documents documents) {
  return step(ctx, batches_of(tokens, lengths, documents), rates);
}

void RankTrainer::set_weights(RankContext& ctx, const std::function<void()>& set) {
  data_parallel_->set_parameters(ctx, set);
  values_changed();
  optimizer_->read_parameters(ctx);
}

double RankTrainer::evaluate(RankContext& ctx, std::span<const Batch> batches, int64_t all,
                             const LogitObserver& observer) {
  const TraceRange range(ctx.tracer, "evaluate");
  check_batches(batches, config_);
  const Passes passes{*this, batches, {.iteration = steps_taken(), .batches = all}, true, {}, observer};
  Tensor loss = passes.run(ctx).loss;
  if (passes.per_token()) loss = times(ctx, loss, per_label_factor(ctx, labels_of(batches), parallel_));
  if (ctx.device.is_meta()) return 0;
  const double value = ctx.item(loss);
  parallel_.world().require_running();
  return value;
}

double RankTrainer::evaluate(RankContext& ctx, std::span<const int64_t> tokens,
                             std::span<const int64_t> lengths, Documents documents) {
  return evaluate(ctx, batches_of(tokens, lengths, documents));
}

}  // namespace megatron
