#include "megatron/models/decode_step.h"

#include "megatron/models/gather_columns.h"
#include "megatron/models/persistent_decode.h"
#include "megatron/transformer/layer_pattern.h"

namespace megatron {

// States have slots, which padding would need too. Padding would also take the places of an expert with a
// capacity. The host reads how many tokens go to experts of other ranks, waits for those, draws the numbers
// of random routing, and moves delayed scales of fp8 on.
bool can_capture_decode(const Model& model) {
  const ModelConfig& config = model.config();
  const bool routes_alone = !config.moe_expert_capacity_factor && !config.moe_router_force_load_balancing &&
                            !config.moe_router_force_biased;
  for (ModelChunk* chunk : model.chunks())
    for (const Parameter* parameter : chunk->parameters())
      if (parameter->fp8) return false;
  return model.can_decode() && model.chunks().size() == 1 && model.stages() == 1 &&
         model.parallel().tensor.size() == 1 && model.parallel().expert.all.size() == 1 && routes_alone &&
         config.mtp_num_layers == 0 && !carries_states(config) && !rope_depends_on_length(config) &&
         !config.query_scaling_beta;
}

Tensor decode_step(RankContext& ctx, Model& model, const SequenceBatch& batch, PagedCache& cache,
                   const StepFrequencies& frequencies) {
  NoGrad no_grad(ctx);
  const ModelConfig& config = model.config();
  MicroBatch micro;
  micro.ids = batch.ids;
  micro.seq = model_sequences(ctx, batch, config, model.dtype(), &frequencies);
  micro.seq.cache = &cache;
  if (const Tensor logits = decode_persistently(ctx, model, batch.ids, micro.seq))
    return first_columns(ctx, logits, config.vocab_size, model.dtype());
  if (config.num_tokentypes > 0) micro.seq.token_types = ctx.zeros(batch.ids.shape(), DType::I64);
  const auto last = [&](RankContext&, const StageTensors& states, const MicroBatch&) {
    // The vocabulary may be padded.
    return first_columns(ctx, model.head()->logits(ctx, states[0]), config.vocab_size, model.dtype());
  };
  return model.run(ctx, {.tokens = [&](int) { return StageTokens{batch.ids.size(0)}; },
                         .micro_batch = [&](RankContext&, int, const ModelChunk&) { return micro; },
                         .last = last})[0];
}

}  // namespace megatron
