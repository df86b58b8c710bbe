#include "megatron/parallel/pipeline/executor.h"
#include "megatron/training/rank_trainer.h"

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

}  // namespace

Tensor RankTrainer::logits(RankContext& ctx, std::span<const int64_t> tokens, int64_t rows) {
  require(rows > 0 && !tokens.empty() && tokens.size() % static_cast<size_t>(rows) == 0,
          "logits: {} tokens are not {} rows of one length", tokens.size(), rows);
  const auto count = static_cast<int64_t>(tokens.size());
  const TokenRows shape{.rows = rows, .length = count / rows, .documents = {}};
  const ContextParallel& context = model_parallel_.context;
  const TensorParallel& tp = model_parallel_.tensor;
  std::vector<int64_t> held;
  for (int64_t place : held_tokens(shape, context)) held.push_back(tokens[static_cast<size_t>(place)]);
  SeqInfo seq = chunks_[0]->sequences(ctx, shape);
  seq.training = false;

  PipelineShape pipeline = pipeline_shape(config_, 1);
  pipeline.forward_only = true;
  PipelineWork work;
  work.dtype = dtype_;
  work.boundary = Shape{seq.tokens() / (tp.splits_tokens() ? tp.size() : 1), config_.model.hidden_size};
  work.forward = [&](RankContext& rank, int chunk, int, const Tensor& input) {
    GptModel& model = *chunks_[static_cast<size_t>(chunk)];
    Tensor hidden = model.forward(rank, input ? input : rank.from_vector(held, {seq.tokens()}), seq);
    return model.slice().head ? model.logits(rank, hidden) : hidden;
  };
  const ProcessGroup& stages = parallel_.group(Axis::pp);
  std::vector<Tensor> results = run_pipeline(ctx, pipeline, work, stages);

  // What this rank's tokens have over the vocabulary, from the stage that has it; then all tokens.
  const int last = chunk_at(pipeline, pipeline.pp * pipeline.vpp - 1).rank;
  Tensor own = ctx.empty({seq.tokens(), config_.model.vocab_size}, dtype_);
  if (stages.rank() == last)
    ctx.kernels->copy(
        ctx.kernel_context(),
        {gather_columns(ctx, results[0].detach(), tp.group).slice(1, 0, config_.model.vocab_size), own});
  stages.broadcast(own, last).wait();
  if (context.size() == 1) return own;
  Tensor all = ctx.empty({context.size(), own.size(0), own.size(1)}, dtype_);
  context.group.all_gather(own, all).wait();
  Tensor whole = ctx.empty({count, own.size(1)}, dtype_);
  const std::vector<int64_t> lengths = shape.sequences();
  for (int r = 0; r < context.size(); ++r) {
    const std::vector<int64_t> places = zigzag_tokens(lengths, r, context.size());
    for (size_t i = 0; i < places.size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      ctx.kernels->copy(ctx.kernel_context(),
                        {all.select(0, r).slice(0, at, at + 1), whole.slice(0, places[i], places[i] + 1)});
    }
  }
  return whole;
}

}  // namespace megatron
