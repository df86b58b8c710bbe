#pragma once

#include "megatron/models/objective.h"
#include "megatron/nn/parameter_unit.h"
#include "megatron/parallel/context/sequences.h"
#include "megatron/parallel/tensor/vocab_cross_entropy.h"
#include "megatron/transformer/embedding.h"
#include "megatron/transformer/layer.h"
#include "megatron/transformer/mtp_layer.h"
#include "megatron/transformer/output_stage.h"

namespace megatron {

// Which part of the model a pipeline chunk holds.
struct ModelSlice {
  int64_t first_layer = 0, layers = 0;
  bool embedding = true, head = true;
  bool mtp = true;  // the MTP layers, where the model has them
};

// Told what the residual stream is behind each layer of a pass, by the layer's place in the whole model.
using LayerObserver = std::function<void(int64_t layer, const Tensor& stream)>;

// A GPT-style decoder, or one pipeline chunk of it; without its causal mask, and with the head of masked
// tokens, BERT.
class GptModel final : public Module, public Head {
 public:
  // `embedding`: that of another chunk of this rank, which a tied output layer and MTP layers use
  // instead of a copy.
  GptModel(const ModelConfig& config, const ModelSlice& slice, const ModelParallel& parallel, DType dtype,
           Embedding* embedding = nullptr);

  // Puts a program's own token mixers in place of the configuration's, before parameters have memory: of
  // every layer for which `make` (its index in the whole model, from 0) does not return null.
  using MixerFactory = std::function<std::unique_ptr<TokenMixer>(int64_t layer)>;
  void replace_mixers(const MixerFactory& make);

  // What is recomputed and what waits on the host; by default everything is kept.
  void set_activation_plan(const ActivationPlan& plan);

  // Positions and rotary angles of this rank's tokens of a micro-batch.
  SeqInfo sequences(RankContext& ctx, const TokenRows& rows) const;
  SeqInfo sequences(RankContext& ctx, int64_t batch, int64_t length) const {
    return sequences(ctx, {.rows = batch, .length = length, .documents = {}});
  }

  // From token ids int64 [tokens] (the first chunk) or the previous chunk's activations to what the next
  // chunk takes.
  Tensor forward(RankContext& ctx, const Tensor& input, const SeqInfo& seq,
                 const LayerObserver& on_layer = {});
  // The two halves of the first chunk's: token ids to embeddings, where rows may be put in place of others,
  // and from there.
  Tensor embed(RankContext& ctx, const Tensor& ids, const SeqInfo& seq);
  Tensor forward_from(RankContext& ctx, const Tensor& hidden, const SeqInfo& seq,
                      const LayerObserver& on_layer = {});
  // On the last chunk, from forward()'s result: the loss of each token [tokens] (0 where the label is
  // ignored), or the logits of this rank's part of the vocabulary [tokens, padded vocabulary / tp].
  Tensor token_losses(RankContext& ctx, const Tensor& hidden, const Tensor& labels) override;
  Tensor loss_sum(RankContext& ctx, const Tensor& hidden, const Tensor& labels,
                  const Tensor& weights) override;
  Tensor logits(RankContext& ctx, const Tensor& hidden) override;
  // Multi-token prediction, in the chunk that has the layers: what each of them makes of forward()'s result.
  std::vector<Tensor> run_mtp(RankContext& ctx, const Tensor& hidden, std::span<const MtpTokens> tokens,
                              const SeqInfo& seq);

  void visit(const ParameterVisitor& visitor) override;
  // After the last micro-batch of a step: routers sum up what their experts had; with the update, where
  // `gate` (bool [1]) is true, they move the experts' biases.
  void finish_batch(RankContext& ctx);
  void update_expert_bias(RankContext& ctx, const Tensor& gate);
  const ModelConfig& config() const { return config_; }
  const ModelSlice& slice() const { return slice_; }
  DType dtype() const { return dtype_; }
  // Its parts in order of use; that of a tied output weight holds the embedding's parameter again.
  std::vector<ParameterUnit*> units();
  // The parameter of which several stages have a copy, as embedding, output weight or for MTP layers,
  // where this chunk has one.
  Parameter* tied_weight();
  Embedding* embedding() { return embedding_.get(); }  // null where another chunk has it

 private:
  void make_head(Embedding* embedding);
  void make_mtp_layers(Embedding* embedding);
  void make_units();
  void run_layer(RankContext& ctx, int64_t i, Residual& residual, const SeqInfo& seq);
  Tensor run_region(RankContext& ctx, int64_t first, int64_t count, const Residual& residual,
                    const SeqInfo& seq);
  VocabLossOptions loss_options(RankContext& ctx);
  Parameter& output_weight() { return output_ ? *output_ : embedding_ ? embedding_->table() : *shared_; }

  ModelConfig config_;
  ModelSlice slice_;
  ModelParallel parallel_;
  DType dtype_;
  std::unique_ptr<Embedding> embedding_;
  std::vector<std::unique_ptr<TransformerLayer>> layers_;
  std::unique_ptr<OutputStage> final_;
  std::unique_ptr<Parameter> output_;  // absent where the embedding of this rank serves
  std::unique_ptr<Parameter> output_bias_;
  Parameter* shared_ = nullptr;  // another chunk's
  std::vector<std::unique_ptr<MtpLayer>> mtp_;
  std::unique_ptr<Embedding> mtp_copy_;  // their copy of the table, where another rank has it
  Embedding* mtp_embedding_ = nullptr;   // what they use: that copy, or one of this rank's chunks'
  ActivationPlan plan_;
  std::unique_ptr<HostOffload> host_;  // made when it is first used
  std::unique_ptr<ParameterUnit> embedding_unit_, final_unit_, mtp_embedding_unit_, output_unit_;
  std::vector<std::unique_ptr<ParameterUnit>> layer_units_, mtp_units_;
};

}  // namespace megatron
