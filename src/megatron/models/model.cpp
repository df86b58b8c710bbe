#include "megatron/models/model.h"

#include "megatron/models/elastic/elastic_spec.h"
#include "megatron/models/gather_columns.h"
#include "megatron/models/parallel_setup.h"
#include "megatron/models/pipeline_setup.h"
#include "megatron/models/whole_model.h"
#include "megatron/ops/index.h"
#include "megatron/ops/shape.h"
#include "megatron/parallel/pipeline/executor.h"
#include "megatron/transformer/moe/routing_record.h"

namespace megatron {
namespace {

// The rows of all context-parallel ranks, in the order of the sequences.
Tensor gather_tokens(RankContext& ctx, const Tensor& part, const ContextParallel& context,
                     const ContextSlices& slices) {
  if (context.size() == 1) return part;
  Tensor all = ctx.empty({context.size() * part.size(0), part.size(1)}, part.dtype());
  context.group.all_gather(part, all).wait();
  return slices.whole.forward ? ops::gather_rows(ctx, all, slices.whole.forward) : all;
}

// Context parallelism cuts every row into equal chunks. What a causal model makes of a token does not depend
// on what follows, so rows may be filled up.
int64_t padded_length(int64_t length, const ContextParallel& context) {
  const int64_t chunks = context.size() == 1 ? 1 : 2 * context.size();
  return (length + chunks - 1) / chunks * chunks;
}

// What routers will choose, where that is wanted.
std::unique_ptr<RoutingRecord> routing_record(RankContext& ctx, const ModelConfig& config, int64_t tokens,
                                              SeqInfo& seq) {
  if (!config.moe_enable_routing_replay) return {};
  auto record = std::make_unique<RoutingRecord>(ctx, config, tokens);
  seq.routing_record = record.get();
  return record;
}

// Rows that were filled up to `length` tokens, whose last ones choose by themselves.
Tensor padded_routing(RankContext& ctx, const Tensor& experts, int64_t rows, int64_t length) {
  const Shape from{rows, experts.size(0) / rows, experts.size(1), experts.size(2)};
  Tensor all = ctx.full({rows, length, from[2], from[3]}, DType::I64, -1);
  ctx.kernels->copy(ctx.kernel_context(), {experts.view(from), all.slice(1, 0, from[1])});
  return all.view({rows * length, from[2], from[3]});
}

}  // namespace

Tensor gather_columns(RankContext& ctx, const Tensor& part, const ProcessGroup& group) {
  if (group.size() == 1) return part;
  const int64_t rows = part.size(0), columns = part.size(1);
  Tensor all = ctx.empty({group.size(), rows, columns}, part.dtype());
  group.all_gather(part, all).wait();
  Tensor whole = ctx.empty({rows, group.size() * columns}, part.dtype());
  ctx.kernels->copy(ctx.kernel_context(), {all.transpose(0, 1), whole.view({rows, group.size(), columns})});
  return whole;
}

Tensor first_columns(RankContext& ctx, const Tensor& x, int64_t columns, DType dtype) {
  if (x.size(1) == columns && x.dtype() == dtype && x.is_contiguous()) return x;
  Tensor first = ctx.empty({x.size(0), columns}, dtype);
  ctx.kernels->copy(ctx.kernel_context(), {x.slice(1, 0, columns), first});
  return first;
}

Model::Model(const Config& config, const ParallelContext& parallel, DType dtype)
    : config_(config.model),
      parallel_(model_parallel(config, parallel)),
      shape_(pipeline_shape(config, 1)),
      mtp_stage_(mtp_stage(config, shape_)),
      elastic_choices_(elastic_choices(config)),
      overlap_messages_(config.parallel.overlap_p2p_comm.value_or(true)),
      stages_(parallel.group(Axis::pp)),
      plans_(stages_.rank()),
      dtype_(dtype) {
  if (is_encoder_decoder(config_)) {
    encoder_decoder_ =
        std::make_unique<T5Model>(config_, model_slice(config, shape_, stages_.rank(), 0), parallel_, dtype);
    all_chunks_ = {encoder_decoder_.get()};
    for (int stage = 0; stage < shape_.pp; ++stage)
      encoder_stages_ += model_slice(config, shape_, stage, 0).first_layer < config_.encoder_num_layers;
    return;
  }
  chunks_ = model_chunks(config, shape_, stages_.rank(), parallel_, dtype);
  for (auto& chunk : chunks_) all_chunks_.push_back(chunk.get());
  const std::vector<Parameter*> all = parameters();
  if (config_.has_tower()) freeze_parts(config_, all);
}

std::vector<Parameter*> Model::parameters() {
  std::vector<Parameter*> all;
  for (ModelChunk* chunk : all_chunks_)
    for (Parameter* parameter : chunk->parameters()) all.push_back(parameter);
  return all;
}

// Ranks that share a sequence do not share a cache.
bool Model::can_decode() const {
  return parallel_.context.size() == 1 && !parallel_.tensor.splits_tokens() && is_decoder(config_) &&
         !config_.vision_bidirectional && !encoder_decoder_ && !config_.attends_sparsely();
}

CacheShapes Model::cache_shapes() const {
  CacheShapes all;
  for (const auto& chunk : chunks_) all.merge(chunk->cache_shapes());
  return all;
}

// Every stage needs to know where images stand; their pixels matter to the first alone.
void Model::look_at_images(RankContext& ctx, const ForwardPass& pass, MicroBatch& micro) const {
  if (!pass.images) check_text(pass.tokens);
  if (!pass.images && !config_.vision_bidirectional) return;
  require(config_.has_tower(), "logits: images are for a model with a vision tower");
  require(parallel_.context.size() == 1,
          "images: sequences that speak of them are not split over {} ranks here; use "
          "--context-parallel-size 1",
          parallel_.context.size());
  add_images(ctx, config_, pass.tokens, pass.rows,
             pass.images ? pass.images->grids : std::vector<PatchGrid>{}, dtype_, micro.seq);
  if (pass.images) put_images(ctx, config_, pass.tokens, {}, *pass.images, micro);
}

void Model::check_text(std::span<const int64_t> tokens) const {
  for (int64_t id : tokens)
    if (config_.has_tower() && config_.is_image_token(id))
      throw ConfigError(
          fmt::format("logits: token {} stands for an image, but none was given (--images)", id));
}

Head* Model::head() {
  for (ModelChunk* chunk : all_chunks_)
    if (chunk->slice().head) return chunk;
  return nullptr;
}

// What a stage takes from the one before: see GptModel::run_stage() and T5Model::run_stage(). Behind the
// stage of the MTP layers, what they made travels on beside the hidden states.
std::vector<Shape> Model::stage_inputs(int stage, const StageTokens& tokens, bool mtp) const {
  const auto states = [&](int64_t count) {
    return Shape{parallel_.tensor.token_rows(count), config_.stream_width()};
  };
  if (encoder_decoder_)
    return stage < encoder_stages_ ? std::vector{states(tokens.source), states(tokens.own)}
                                   : std::vector{states(tokens.own), states(tokens.source)};
  const int64_t depths = mtp && stage > mtp_stage_ ? config_.mtp_num_layers : 0;
  std::vector all(static_cast<size_t>(1 + depths), states(tokens.own));
  if (elastic_choices_ > 0) all.push_back({1, elastic_choices_});
  return all;
}

std::vector<Tensor> Model::run(RankContext& ctx, const PipelinePass& pass) {
  PipelineShape shape = shape_;
  shape.microbatches = pass.microbatches;
  shape.forward_only = pass.forward_only;
  PipelineWork work;
  work.dtype = config_.fp32_residual_connection ? accumulation_dtype(dtype_) : dtype_;
  work.overlap = overlap_messages_;
  work.captured = pass.captured;
  work.input_shapes = [&](int stage, int microbatch) {
    return stage_inputs(stage, pass.tokens(microbatch), !pass.forward_only);
  };
  MicroBatch last;  // of the chunk with the head, between its pass and what is made of it
  work.forward = [&](RankContext& rank, int chunk, int microbatch, const StageTensors& input) {
    ModelChunk& model = *all_chunks_[static_cast<size_t>(chunk)];
    MicroBatch micro = pass.micro_batch(rank, microbatch, model);
    if (!model.slice().mtp && !model.slice().head) micro.mtp.clear();
    StageTensors states = model.run_stage(rank, input, micro, pass.on_layer);
    if (model.slice().head) last = std::move(micro);
    return states;
  };
  work.last = [&](RankContext& rank, int, const StageTensors& states) {
    const MicroBatch micro = std::exchange(last, {});
    return pass.last(rank, states, micro);
  };
  return run_pipeline(ctx, plans_.of(shape), work, stages_);
}

Tensor Model::logits(RankContext& ctx, const ForwardPass& pass) {
  require(pass.rows > 0 && !pass.tokens.empty() && pass.tokens.size() % static_cast<size_t>(pass.rows) == 0,
          "logits: {} tokens are not {} rows of one length", pass.tokens.size(), pass.rows);
  require(!parallel_.tensor.unequal(),
          "logits: replicas that have lost ranks only train; leave --non-active-ranks and --tp-spares out");
  NoGrad no_grad(ctx);
  const ContextParallel& context = parallel_.context;
  const std::span<const int64_t> text = encoder_decoder_ ? pass.decoder_tokens : pass.tokens;
  const int64_t given = std::ssize(text) / pass.rows;
  const TokenRows rows{.rows = pass.rows, .length = padded_length(given, context)};
  std::vector<int64_t> held = held_tokens(rows, context);
  for (int64_t& place : held) {
    const int64_t row = place / rows.length, at = place % rows.length;
    place = at < given ? text[static_cast<size_t>(row * given + at)] : 0;
    // An image's token may stand outside of the vocabulary; its row is the tower's.
    if (place < 0 && pass.images && config_.is_image_token(place)) place = 0;
  }
  MicroBatch micro;
  micro.seq = all_chunks_[0]->sequences(ctx, rows);
  micro.seq.training = false;
  micro.ids = ctx.from_vector(held, {std::ssize(held)});
  if (config_.num_tokentypes > 0) {
    std::vector<int64_t> types(pass.token_types.begin(), pass.token_types.end());
    types.resize(held.size(), 0);
    micro.seq.token_types = ctx.from_vector(types, micro.ids.shape());
  }
  const int64_t source = std::ssize(pass.tokens) / pass.rows;
  if (encoder_decoder_) {
    const std::vector<int64_t> ids(pass.tokens.begin(), pass.tokens.end());
    micro.extra["encoder_ids"] = ctx.from_vector(ids, {pass.rows, source});
    micro.encoded = pass.encoded;
  }
  if (!pass.lengths.empty())
    micro.extra[encoder_decoder_ ? "encoder_mask" : "padding_mask"] =
        padding_mask(ctx, pass.lengths, encoder_decoder_ ? source : rows.length);
  look_at_images(ctx, pass, micro);
  micro.seq.replayed_experts = pass.routed_experts;
  if (pass.routed_experts && rows.length != given)
    micro.seq.replayed_experts = padded_routing(ctx, pass.routed_experts, pass.rows, rows.length);
  std::unique_ptr<RoutingRecord> record;
  if (!encoder_decoder_) record = routing_record(ctx, config_, micro.ids.size(0), micro.seq);

  // On the stage that has the head: every token in its place, then the vocabulary; and then everywhere.
  const int64_t kept = pass.last_only ? 1 : given;
  Tensor result = ctx.empty({pass.rows, kept, config_.vocab_size}, dtype_);
  const auto last = [&](RankContext&, const StageTensors& states, const MicroBatch&) {
    Tensor hidden = states[0];
    int64_t length = rows.length, end = given;
    if (pass.last_only && hidden.size(0) == pass.rows * length) {  // every token is here: the head reads one
      hidden = ops::contiguous(ctx, hidden.view({pass.rows, length, hidden.size(1)}).select(1, given - 1));
      length = end = 1;
    }
    Tensor own = gather_columns(ctx, head()->logits(ctx, hidden), parallel_.tensor.group);
    Tensor all = gather_tokens(ctx, own, context, micro.seq.context);
    Tensor wanted = all.view({pass.rows, length, all.size(1)}).slice(1, end - kept, end);
    ctx.kernels->copy(ctx.kernel_context(), {wanted.slice(2, 0, config_.vocab_size), result});
    return result;
  };
  run(ctx, {.tokens =
                [&](int) {
                  return StageTokens{std::ssize(held), std::ssize(pass.tokens)};
                },
            .micro_batch = [&](RankContext&, int, const ModelChunk&) { return micro; },
            .last = last,
            .on_layer = pass.on_layer});
  if (record) {
    const Tensor own = record->gather(parallel_.tensor.group, stages_);
    const Shape shape{pass.rows, rows.length, own.size(1) * own.size(2)};
    const Tensor all = gather_tokens(ctx, own.view({own.size(0), shape[2]}), context, micro.seq.context);
    routed_experts_ = ctx.empty({pass.rows * given, own.size(1), own.size(2)}, DType::I64);
    ctx.kernels->copy(ctx.kernel_context(), {all.view(shape).slice(1, 0, given),
                                             routed_experts_.view({pass.rows, given, shape[2]})});
  }
  stages_.broadcast(result, last_rank()).wait();
  return result.view({pass.rows * kept, config_.vocab_size});
}

Tensor Model::decode(RankContext& ctx, const StepInput& input, PagedCache& cache) {
  require(can_decode(), "decode: this model under this layout reads whole sequences alone");
  NoGrad no_grad(ctx);
  const SequenceBatch batch(ctx, input, cache_shapes(), cache.block_size());
  MicroBatch micro;
  micro.ids = batch.ids;
  micro.seq = chunks_[0]->sequences(ctx, batch);
  micro.seq.cache = &cache;
  if (config_.num_tokentypes > 0) micro.seq.token_types = ctx.zeros(batch.ids.shape(), DType::I64);
  const std::unique_ptr<RoutingRecord> record = routing_record(ctx, config_, batch.ids.size(0), micro.seq);
  decoded_ = {};
  Tensor result = ctx.empty({batch.wanted.size(0), config_.vocab_size}, dtype_);
  const auto last = [&](RankContext&, const StageTensors& states, const MicroBatch&) {
    if (draft_depths() > 0) decoded_ = states[0];
    if (result.numel() == 0) return result;
    const bool every = batch.wanted.size(0) == states[0].size(0);
    const Tensor rows = every ? states[0] : ops::gather_rows(ctx, states[0], batch.wanted);
    const Tensor all = gather_columns(ctx, head()->logits(ctx, rows), parallel_.tensor.group);
    result = {};
    return result = first_columns(ctx, all, config_.vocab_size, dtype_);
  };
  run(ctx, {.tokens = [&](int) { return StageTokens{batch.ids.size(0)}; },
            .micro_batch = [&](RankContext&, int, const ModelChunk&) { return micro; },
            .last = last});
  if (record) {
    const Tensor chosen = record->gather(parallel_.tensor.group, stages_);
    routed_experts_ = ctx.empty(chosen.shape(), DType::I64);
    ctx.kernels->copy(ctx.kernel_context(), {chosen, routed_experts_});
  }
  if (result.numel() > 0) stages_.broadcast(result, last_rank()).wait();
  return result;
}

}  // namespace megatron
