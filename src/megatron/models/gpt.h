#pragma once

#include "megatron/models/model_chunk.h"
#include "megatron/nn/sequence_batch.h"
#include "megatron/parallel/tensor/vocab_cross_entropy.h"
#include "megatron/transformer/embedding.h"
#include "megatron/transformer/layer.h"
#include "megatron/transformer/mtp_layer.h"
#include "megatron/transformer/output_stage.h"

namespace megatron {

class ElasticMasks;
class ElasticRouter;
struct ElasticSpec;
class VisionTower;

// A GPT-style decoder, or one pipeline chunk of it; without its causal mask, and with the head of masked
// tokens, BERT.
class GptModel final : public ModelChunk {
 public:
  // `embedding`: that of another chunk of this rank, which a tied output layer and MTP layers use
  // instead of a copy. `elastic`: its sub-networks, where it has any.
  GptModel(const ModelConfig& config, const ModelSlice& slice, const ModelParallel& parallel, DType dtype,
           Embedding* embedding = nullptr, std::shared_ptr<const ElasticSpec> elastic = nullptr);
  ~GptModel() override;

  void replace_mixers(const MixerFactory& make) override;
  void set_activation_plan(const ActivationPlan& plan) override;

  SeqInfo sequences(RankContext& ctx, const TokenRows& rows) const override;
  SeqInfo sequences(RankContext& ctx, int64_t batch, int64_t length) const {
    return sequences(ctx, {.rows = batch, .length = length, .documents = {}});
  }
  // The same of a decoder's step.
  SeqInfo sequences(RankContext& ctx, const SequenceBatch& batch) const;
  // What its layers keep of the tokens that a decoder has seen.
  CacheShapes cache_shapes() const;

  std::vector<std::string> extra_inputs() const override;
  // Hidden states first; then those of MTP layers where the micro-batch has tokens for them, or on BERT's
  // last chunk what its binary head makes of each row, [rows, 2].
  StageTensors run_stage(RankContext& ctx, const StageTensors& input, const MicroBatch& micro,
                         const LayerObserver& on_layer = {}) override;
  // On the last chunk, from its hidden states: the loss of each token [tokens] (0 where the label is
  // ignored), or the logits of this rank's part of the vocabulary [tokens, padded vocabulary / tp].
  Tensor token_losses(RankContext& ctx, const Tensor& hidden, const Tensor& labels) override;
  Tensor loss_sum(RankContext& ctx, const Tensor& hidden, const Tensor& labels,
                  const Tensor& weights) override;
  Tensor logits(RankContext& ctx, const Tensor& hidden) override;
  Tensor logit_losses(RankContext& ctx, const Tensor& logits, const Tensor& labels) override;
  Tensor logit_divergence(RankContext& ctx, const Tensor& logits, Tensor teacher, const Tensor& labels,
                          double temperature) override;
  ops::Likeliest likeliest(RankContext& ctx, const Tensor& logits, int64_t count) override;
  Tensor completed_logits(RankContext& ctx, const Tensor& logits, const ops::Likeliest& teacher) override;
  // Multi-token prediction, in the chunk that has the layers: what each of them makes of the hidden states.
  std::vector<Tensor> run_mtp(RankContext& ctx, const Tensor& hidden, std::span<const MtpTokens> tokens,
                              const SeqInfo& seq);

  // One of them: `depth` counts from 0, `before` is what the one before it made, or the hidden states.
  Tensor run_mtp_layer(RankContext& ctx, int64_t depth, const Tensor& ids, const Tensor& before,
                       const SeqInfo& seq);
  // What the layers of one depth keep of tokens while decoding; none where this chunk has no MTP layers.
  CacheShapes mtp_cache_shapes(int64_t depth) const;

  void visit(const ParameterVisitor& visitor) override;
  std::vector<QkClipTarget*> qk_clip_targets() override;
  void finish_batch(RankContext& ctx) override;
  void update_expert_bias(RankContext& ctx, const Tensor& gate) override;
  // Which of the experts' biases stay as they are: of the layers, and of the MTP layers.
  void hold_expert_biases(bool of_layers, bool of_mtp) {
    holds_base_biases_ = of_layers;
    holds_mtp_biases_ = of_mtp;
  }
  std::vector<AuxLossSum> take_losses() override;
  const ModelConfig& config() const { return config_; }
  const ModelSlice& slice() const override { return slice_; }
  DType dtype() const { return dtype_; }
  std::vector<ParameterUnit*> units() override;
  Parameter* tied_weight() override;
  Embedding* embedding() { return embedding_.get(); }  // null where another chunk has it
  VisionTower* tower() { return tower_.get(); }        // beside the embedding, where the model has one

 private:
  void make_head(Embedding* embedding);
  void make_mtp_layers(Embedding* embedding);
  void make_units();
  void make_elastic(std::shared_ptr<const ElasticSpec> elastic);
  // On the first stage: the widths of the micro-batch, and the loss of what they cost.
  Tensor choose_widths(RankContext& ctx, const SeqInfo& seq, Tensor& hidden);
  Tensor embed(RankContext& ctx, const Tensor& ids, const SeqInfo& seq);
  // Rows of the tower in place of the embeddings of image tokens.
  Tensor with_images(RankContext& ctx, const Tensor& text, const MicroBatch& micro);
  Residual run_layers(RankContext& ctx, const Tensor& hidden, const SeqInfo& seq,
                      const LayerObserver& on_layer);
  void run_layer(RankContext& ctx, int64_t i, Residual& residual, const SeqInfo& seq);
  Tensor run_region(RankContext& ctx, int64_t first, int64_t count, const Residual& residual,
                    const SeqInfo& seq);
  VocabLossOptions loss_options(RankContext& ctx);
  Parameter& output_weight() { return output_ ? *output_ : embedding_ ? embedding_->table() : *shared_; }

  ModelConfig config_;
  ModelSlice slice_;
  ModelParallel parallel_;
  DType dtype_;
  VocabularyRows rows_;
  std::unique_ptr<Embedding> embedding_;
  std::unique_ptr<VisionTower> tower_;
  std::vector<std::unique_ptr<TransformerLayer>> layers_;
  std::unique_ptr<OutputStage> final_;
  std::unique_ptr<Parameter> output_;  // absent where the embedding of this rank serves
  std::unique_ptr<Parameter> output_bias_;
  Parameter* shared_ = nullptr;  // another chunk's
  std::vector<std::unique_ptr<MtpLayer>> mtp_;
  bool holds_base_biases_ = false, holds_mtp_biases_ = false;
  std::unique_ptr<Embedding> mtp_copy_;            // their copy of the table, where another rank has it
  Embedding* mtp_embedding_ = nullptr;             // what they use: that copy, or one of this rank's chunks'
  std::unique_ptr<ElasticMasks> elastic_masks_;    // where the model has sub-networks, and
  std::unique_ptr<ElasticRouter> elastic_router_;  // where this chunk has the embedding
  std::unique_ptr<ParameterUnit> elastic_unit_;
  ActivationPlan plan_;
  std::unique_ptr<HostOffload> host_;  // made when it is first used
  std::unique_ptr<ParameterUnit> embedding_unit_, final_unit_, mtp_embedding_unit_, output_unit_;
  std::vector<std::unique_ptr<ParameterUnit>> layer_units_, mtp_units_;
};

}  // namespace megatron
