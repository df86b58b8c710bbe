#include "megatron/training/step/rank_model.h"

#include "megatron/models/whole_model.h"
#include "megatron/nn/kv_cache.h"
#include "megatron/ops/index.h"
#include "megatron/ops/shape.h"
#include "megatron/training/setup/parallel_setup.h"
#include "megatron/training/setup/pipeline_setup.h"
#include "megatron/transformer/layer_pattern.h"

namespace megatron {
namespace {

// The columns of all ranks side by side.
Tensor gather_columns(RankContext& ctx, const Tensor& part, const ProcessGroup& group) {
  if (group.size() == 1) return part;
  const int64_t rows = part.size(0), columns = part.size(1);
  Tensor all = ctx.empty({group.size(), rows, columns}, part.dtype());
  group.all_gather(part, all).wait();
  Tensor whole = ctx.empty({rows, group.size() * columns}, part.dtype());
  ctx.kernels->copy(ctx.kernel_context(), {all.transpose(0, 1), whole.view({rows, group.size(), columns})});
  return whole;
}

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

}  // namespace

RankModel::RankModel(const Config& config, const ParallelContext& parallel, DType dtype,
                     const VisionConfig* vision)
    : config_(config.model),
      parallel_(model_parallel(config, parallel)),
      shape_(pipeline_shape(config, 1)),
      stages_(parallel.group(Axis::pp)),
      dtype_(dtype) {
  if (is_encoder_decoder(config_)) {
    encoder_decoder_ = std::make_unique<T5Model>(config_, parallel_, dtype);
    return;
  }
  chunks_ = model_chunks(config, shape_, stages_.rank(), parallel_, dtype);
  if (!vision) return;
  require(parallel_.context.size() == 1,
          "images: sequences that speak of them cannot be split over {} ranks yet", parallel_.context.size());
  vision_ = *vision;
  if (stages_.rank() == chunk_at(shape_, 0).rank)
    tower_ = std::make_unique<VisionTower>(*vision, parallel_, dtype);
}

std::vector<Parameter*> RankModel::parameters() {
  std::vector<Parameter*> all;
  if (encoder_decoder_) return encoder_decoder_->parameters();
  if (tower_) all = tower_->parameters();
  for (auto& chunk : chunks_)
    for (Parameter* parameter : chunk->parameters()) all.push_back(parameter);
  return all;
}

// Ranks that share a sequence do not share a cache, and states are carried on by the CPU alone.
bool RankModel::can_cache(Device device) const {
  return parallel_.context.size() == 1 && !encoder_decoder_ && (device.is_cpu() || !carries_states(config_));
}

// Every stage needs to know where images stand; their pixels matter to the first alone.
void RankModel::look_at_images(RankContext& ctx, const ForwardPass& pass, SeqInfo& seq) const {
  if (pass.images) {
    require(vision_.has_value() && !pass.cache,
            "logits: images are for a model with a vision tower, and whole texts");
    add_images(ctx, config_, *vision_, pass.tokens, pass.rows, pass.images->grids, dtype_, seq);
  } else if (vision_) {
    for (int64_t id : pass.tokens)
      if (is_image_token(*vision_, id))
        throw ConfigError(
            fmt::format("logits: token {} stands for an image, but none was given (--images)", id));
  }
}

Tensor RankModel::run_chunk(RankContext& ctx, GptModel& chunk, const Tensor& input, bool first,
                            const SeqInfo& seq, const ForwardPass& pass) {
  if (!first || !pass.images) return chunk.forward(ctx, input, seq, pass.on_layer);
  const Tensor rows = tower_->forward(ctx, pass.images->pixels, pass.images->grids);
  const Tensor joined = join_images(ctx, chunk.embed(ctx, input, seq), rows, *vision_, pass.tokens);
  return chunk.forward_from(ctx, joined, seq, pass.on_layer);
}

// From stage to stage; the result is that of the last one, undefined on ranks that do not hold it.
Tensor RankModel::run_stages(RankContext& ctx, const Tensor& tokens, const SeqInfo& seq,
                             const ForwardPass& pass) {
  const int64_t split = parallel_.tensor.splits_tokens() ? parallel_.tensor.size() : 1;
  Tensor stream;
  for (int stage = 0; stage < shape_.pp * shape_.vpp; ++stage) {
    const ChunkPlace here = chunk_at(shape_, stage);
    if (stage > 0) {
      const int from = chunk_at(shape_, stage - 1).rank;
      if (from != here.rank && stages_.rank() == from) stages_.send(stream, here.rank).wait();
      if (from != here.rank && stages_.rank() == here.rank) {
        stream = ctx.empty({tokens.size(0) / split, config_.hidden_size}, dtype_);
        stages_.recv(stream, from).wait();
      }
    }
    if (stages_.rank() == here.rank)
      stream = run_chunk(ctx, *chunks_[static_cast<size_t>(here.chunk)], stage == 0 ? tokens : stream,
                         stage == 0, seq, pass);
  }
  return stages_.rank() == chunk_at(shape_, shape_.pp * shape_.vpp - 1).rank ? stream : Tensor{};
}

Tensor RankModel::encoder_decoder_logits(RankContext& ctx, const ForwardPass& pass) {
  const auto length = [&](std::span<const int64_t> tokens) {
    return static_cast<int64_t>(tokens.size()) / pass.rows;
  };
  const auto on_device = [&](std::span<const int64_t> tokens) {
    return ctx.from_vector(std::vector<int64_t>(tokens.begin(), tokens.end()),
                           {static_cast<int64_t>(tokens.size())});
  };
  const T5Model::Source source{.ids = on_device(pass.tokens),
                               .batch = pass.rows,
                               .length = length(pass.tokens),
                               .lengths = {pass.lengths.begin(), pass.lengths.end()},
                               .training = false,
                               .on_layer = pass.on_layer};
  const int64_t own = length(pass.decoder_tokens);
  Tensor states = pass.encoded ? *pass.encoded : Tensor{};
  if (!states) states = encoder_decoder_->encode(ctx, source);
  if (pass.encoded) *pass.encoded = states;
  Tensor hidden = encoder_decoder_->decode(ctx, on_device(pass.decoder_tokens), own, source, states);
  if (pass.last_only)
    hidden = ops::contiguous(ctx, hidden.view({pass.rows, own, hidden.size(1)}).select(1, own - 1));
  Tensor all = gather_columns(ctx, encoder_decoder_->logits(ctx, hidden), parallel_.tensor.group);
  return ops::contiguous(ctx, all.slice(1, 0, config_.vocab_size));
}

StageTensors RankModel::forward(RankContext& ctx, int chunk, const StageTensors& input,
                                const MicroBatch& micro) {
  GptModel& model = *chunks_[static_cast<size_t>(chunk)];
  StageTensors states = input;
  if (states.empty()) states.emplace_back();
  states[0] = model.forward(ctx, input.empty() ? micro.ids : input[0], micro.seq);
  if (!model.slice().mtp || micro.mtp.empty()) return states;
  for (Tensor& state : model.run_mtp(ctx, states[0], micro.mtp, micro.seq))
    states.push_back(std::move(state));
  return states;
}

Head* RankModel::head() {
  for (auto& chunk : chunks_)
    if (chunk->slice().head) return chunk.get();
  return nullptr;
}

Tensor RankModel::logits(RankContext& ctx, const ForwardPass& pass) {
  require(pass.rows > 0 && !pass.tokens.empty() && pass.tokens.size() % static_cast<size_t>(pass.rows) == 0,
          "logits: {} tokens are not {} rows of one length", pass.tokens.size(), pass.rows);
  require(!pass.cache || (pass.rows == 1 && can_cache(ctx.device)),
          "logits: a cache is for one row that no context-parallel ranks share");
  NoGrad no_grad(ctx);
  if (encoder_decoder_) return encoder_decoder_logits(ctx, pass);
  const ContextParallel& context = parallel_.context;
  const int64_t given = static_cast<int64_t>(pass.tokens.size()) / pass.rows;
  const TokenRows rows{.rows = pass.rows,
                       .length = padded_length(given, context),
                       .first = pass.cache ? pass.cache->length() : 0};
  std::vector<int64_t> held = held_tokens(rows, context);
  for (int64_t& place : held) {
    const int64_t row = place / rows.length, at = place % rows.length;
    place = at < given ? pass.tokens[static_cast<size_t>(row * given + at)] : 0;
  }
  SeqInfo seq = chunks_[0]->sequences(ctx, rows);
  seq.training = false;
  seq.cache = pass.cache;
  Tensor tokens = ctx.from_vector(held, {static_cast<int64_t>(held.size())});
  if (config_.num_tokentypes > 0) {
    std::vector<int64_t> types(pass.token_types.begin(), pass.token_types.end());
    types.resize(held.size(), 0);
    seq.token_types = ctx.from_vector(types, tokens.shape());
  }
  if (!pass.lengths.empty())
    seq.attention_bias = padding_bias(ctx, pass.lengths, rows.length, rows.length, dtype_);
  look_at_images(ctx, pass, seq);
  Tensor hidden = run_stages(ctx, tokens, seq, pass);
  if (pass.cache) pass.cache->finish_pass(given);

  // On the stage that has the head: every token in its place, then the vocabulary; and then everywhere.
  const ChunkPlace last = chunk_at(shape_, shape_.pp * shape_.vpp - 1);
  const int64_t kept = pass.last_only ? 1 : given;
  Tensor result = ctx.empty({pass.rows, kept, config_.vocab_size}, dtype_);
  if (hidden) {
    GptModel& head = *chunks_[static_cast<size_t>(last.chunk)];
    int64_t length = rows.length, end = given;
    if (pass.last_only && hidden.size(0) == pass.rows * length) {  // every token is here: the head reads one
      hidden = ops::contiguous(ctx, hidden.view({pass.rows, length, hidden.size(1)}).select(1, given - 1));
      length = end = 1;
    }
    Tensor own = gather_columns(ctx, head.logits(ctx, hidden), parallel_.tensor.group);
    Tensor all = gather_tokens(ctx, own, context, seq.context);
    Tensor wanted = all.view({pass.rows, length, all.size(1)}).slice(1, end - kept, end);
    ctx.kernels->copy(ctx.kernel_context(), {wanted.slice(2, 0, config_.vocab_size), result});
  }
  stages_.broadcast(result, last.rank).wait();
  return result.view({pass.rows * kept, config_.vocab_size});
}

}  // namespace megatron
