#pragma once

#include "megatron/models/gpt.h"
#include "megatron/transformer/embedding.h"
#include "megatron/transformer/layer.h"
#include "megatron/transformer/relative_bias.h"

namespace megatron {

// An encoder whose tokens see each other, and a decoder whose tokens see those before them and all of the
// encoder's. The layers are those of decoder-only models. A pipeline chunk of it holds a run of all layers,
// the encoder's first; the first stage embeds the tokens of both.
class T5Model final : public ModelChunk {
 public:
  T5Model(const ModelConfig& config, const ModelParallel& parallel, DType dtype);  // all of it
  T5Model(const ModelConfig& config, const ModelSlice& slice, const ModelParallel& parallel, DType dtype);

  Tensor token_losses(RankContext& ctx, const Tensor& hidden, const Tensor& labels) override;
  Tensor loss_sum(RankContext& ctx, const Tensor& hidden, const Tensor& labels,
                  const Tensor& weights) override;
  Tensor logits(RankContext& ctx, const Tensor& hidden) override;
  Tensor logit_losses(RankContext& ctx, const Tensor& logits, const Tensor& labels) override;
  Tensor logit_divergence(RankContext& ctx, const Tensor& logits, Tensor teacher, const Tensor& labels,
                          double temperature) override;
  ops::Likeliest likeliest(RankContext& ctx, const Tensor& logits, int64_t count) override;
  Tensor completed_logits(RankContext& ctx, const Tensor& logits, const ops::Likeliest& teacher) override;

  const ModelSlice& slice() const override { return slice_; }
  SeqInfo sequences(RankContext& ctx, const TokenRows& rows) const override;
  std::vector<std::string> extra_inputs() const override;
  // What passes between chunks: the encoder's stream and the decoder's embeddings, then the decoder's stream
  // and the encoder's states. Of the extra tensors `encoder_ids` are the source, [rows, length], and
  // `encoder_mask` of the same shape is 1 for each token of it that is seen: all, where it is not given, and
  // then every chunk takes the source. Layers of both are counted from the encoder's first.
  StageTensors run_stage(RankContext& ctx, const StageTensors& input, const MicroBatch& micro,
                         const LayerObserver& on_layer = {}) override;
  void replace_mixers(const MixerFactory& make) override;  // an error: its layers have attention alone
  void set_activation_plan(const ActivationPlan& plan) override;
  std::vector<ParameterUnit*> units() override;
  Parameter* tied_weight() override;
  void finish_batch(RankContext& ctx) override;
  void update_expert_bias(RankContext& ctx, const Tensor& gate) override;
  std::vector<AuxLossSum> take_losses() override;

  void visit(const ParameterVisitor& visitor) override;
  const ModelConfig& config() const { return config_; }

 private:
  // One of the two stacks.
  struct Stack {
    // `before`: the layers of the stack before it, from which its random numbers count on. Of its own layers
    // it holds those of the slice; the last comes with a norm behind it.
    Stack(const std::string& name, const ModelConfig& config, const ModelParallel& parallel,
          const ModelSlice& slice, int64_t before, bool cross);
    Tensor forward(RankContext& ctx, const Tensor& x, const SeqInfo& seq, const LayerObserver& on_layer);
    Tensor run_region(RankContext& ctx, size_t first, size_t count, const Residual& residual,
                      const SeqInfo& seq);
    void visit(const ParameterVisitor& visitor);

    int64_t first_layer = 0;  // of those that it holds, among all of the model
    TensorParallel tp;
    std::unique_ptr<RelativeBias> positions;  // where positions are relative
    std::vector<std::unique_ptr<TransformerLayer>> layers;
    std::unique_ptr<Norm> final_norm;
    ActivationPlan plan;
    std::unique_ptr<ParameterUnit> positions_unit, final_unit;
    std::vector<std::unique_ptr<ParameterUnit>> layer_units;
  };
  Parameter& output_weight() { return output_ ? *output_ : embedding_->table(); }
  VocabLossOptions loss_options(RankContext& ctx);
  Tensor embed(RankContext& ctx, const Tensor& ids, const SeqInfo& seq);
  SeqInfo source_sequences(RankContext& ctx, const MicroBatch& micro) const;
  Tensor source_bias(RankContext& ctx, const MicroBatch& micro, int64_t queries) const;
  Tensor run_encoder(RankContext& ctx, const Tensor& hidden, SeqInfo seq, const MicroBatch& micro,
                     const LayerObserver& on_layer);
  Tensor run_decoder(RankContext& ctx, const Tensor& hidden, const Tensor& states, const MicroBatch& micro,
                     const LayerObserver& on_layer);
  template <class F>
  void for_each_layer(F&& use);

  ModelConfig config_;
  ModelParallel parallel_;
  DType dtype_;
  ModelSlice slice_;
  VocabularyRows rows_;
  std::unique_ptr<Embedding> embedding_;  // on the first stage
  Stack encoder_, decoder_;
  std::unique_ptr<Parameter> output_;  // absent where the embedding serves, and on other stages than the last
  std::unique_ptr<Parameter> output_bias_;
  std::unique_ptr<ParameterUnit> embedding_unit_, output_unit_;
};

}  // namespace megatron
