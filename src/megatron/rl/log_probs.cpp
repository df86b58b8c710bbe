#include "megatron/rl/log_probs.h"

#include "megatron/parallel/micro_batch.h"

namespace megatron::rl {

std::vector<std::vector<double>> label_log_probs(RankContext& ctx, Model& model,
                                                 const ParallelContext& parallel,
                                                 std::span<const Batch> batches) {
  const TraceRange range(ctx.tracer, "log-probabilities");
  const NoGrad no_grad(ctx);
  const ContextParallel& context = model.parallel().context;
  const auto at = [&](int microbatch) -> const Batch& { return batches[static_cast<size_t>(microbatch)]; };
  const auto micro_batch = [&](RankContext& rank, int microbatch, const ModelChunk& chunk) {
    const StageNeeds needs{.ids = chunk.slice().embedding, .labels = chunk.slice().head};
    MicroBatch micro =
        to_device(rank, at(microbatch), context, needs, {}, accumulation_dtype(model.dtype()), rank.stream);
    micro.seq = model.chunks()[0]->sequences(rank, rows_of(at(microbatch)));
    micro.seq.training = false;
    return micro;
  };
  const std::vector<Tensor> losses =
      model.run(ctx, {.microbatches = static_cast<int>(batches.size()),
                      .tokens =
                          [&](int microbatch) {
                            return StageTokens{.own = std::ssize(at(microbatch).ids) / context.size()};
                          },
                      .micro_batch = micro_batch,
                      .last =
                          [&](RankContext& rank, const StageTensors& states, const MicroBatch& micro) {
                            return model.head()->token_losses(rank, states[0], micro.labels);
                          }});

  // Each token's is on the context-parallel rank of the last stage that has it; all others add nothing.
  std::vector<double> all;
  for (size_t i = 0; i < batches.size(); ++i) {
    const size_t begin = all.size();
    all.resize(begin + batches[i].ids.size());
    if (losses.empty()) continue;
    const Tensor wide = ctx.empty(losses[i].shape(), DType::F64);
    ctx.kernels->copy(ctx.kernel_context(), {losses[i].detach(), wide});
    const std::vector<double> own = ctx.to_vector<double>(wide);
    const std::vector<int64_t> held = held_tokens(rows_of(batches[i]), context);
    for (size_t token = 0; token < held.size(); ++token)
      all[begin + static_cast<size_t>(held[token])] = -own[token];
  }
  const Tensor sum = ctx.from_vector(all, {std::ssize(all)});
  parallel.group(Axis::cp).all_reduce(sum).wait();
  parallel.group(Axis::pp).all_reduce(sum).wait();
  all = ctx.to_vector<double>(sum);
  parallel.world().require_running();

  std::vector<std::vector<double>> result;
  auto next = all.begin();
  for (const Batch& batch : batches) {
    result.emplace_back(next, next + std::ssize(batch.ids));
    next += std::ssize(batch.ids);
  }
  return result;
}

}  // namespace megatron::rl
