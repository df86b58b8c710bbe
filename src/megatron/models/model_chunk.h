#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "megatron/models/objective.h"
#include "megatron/nn/parameter_unit.h"
#include "megatron/parallel/context/sequences.h"
#include "megatron/transformer/activation_plan.h"
#include "megatron/transformer/moe/aux_loss.h"
#include "megatron/transformer/token_mixer.h"

namespace megatron {

// Which part of the model a pipeline chunk holds.
struct ModelSlice {
  int64_t first_layer = 0, layers = 0;
  bool embedding = true, head = true;
  bool mtp = true;  // the MTP layers, where the model has them
};

// Told what the residual stream is behind each layer of a pass, by the layer's place in the whole model.
using LayerObserver = std::function<void(int64_t layer, const Tensor& stream)>;

// A pipeline chunk of a model of any kind. The Head is that of the last chunk.
class ModelChunk : public Module, public Head {
 public:
  virtual const ModelSlice& slice() const = 0;

  // Positions and rotary angles of this rank's tokens of a micro-batch.
  virtual SeqInfo sequences(RankContext& ctx, const TokenRows& rows) const = 0;
  // The tensors of Batch::extra that run_stage() reads in training.
  virtual std::vector<std::string> extra_inputs() const { return {}; }
  // From the micro-batch's ids (the first chunk) or the previous chunk's tensors to what the next chunk, or
  // the objective, takes.
  virtual StageTensors run_stage(RankContext& ctx, const StageTensors& input, const MicroBatch& micro,
                                 const LayerObserver& on_layer) = 0;

  // Puts a program's own token mixers in place of the configuration's, before parameters have memory: of
  // every layer for which `make` (its index in the whole model, from 0) does not return null.
  using MixerFactory = std::function<std::unique_ptr<TokenMixer>(int64_t layer)>;
  virtual void replace_mixers(const MixerFactory& make) = 0;
  // What is recomputed and what waits on the host; by default everything is kept.
  virtual void set_activation_plan(const ActivationPlan& plan) = 0;
  // Its parts in order of use; that of a tied output weight holds the embedding's parameter again.
  virtual std::vector<ParameterUnit*> units() = 0;
  // The parameter of which several stages have a copy, as embedding, output weight or for MTP layers,
  // where this chunk has one.
  virtual Parameter* tied_weight() = 0;

  // After the last micro-batch of a step: routers sum up what their experts had; with the update, where
  // `gate` (bool [1]) is true, they move the experts' biases.
  virtual void finish_batch(RankContext& ctx) = 0;
  virtual void update_expert_bias(RankContext& ctx, const Tensor& gate) = 0;
  // With --qk-clip, of its attention layers.
  virtual std::vector<QkClipTarget*> qk_clip_targets() { return {}; }
  // What routers' losses were since they were last taken.
  virtual std::vector<AuxLossSum> take_losses() = 0;
};

}  // namespace megatron
