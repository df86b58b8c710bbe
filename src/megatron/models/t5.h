#pragma once

#include "megatron/models/gpt.h"
#include "megatron/parallel/context/sequences.h"
#include "megatron/transformer/embedding.h"
#include "megatron/transformer/layer.h"
#include "megatron/transformer/relative_bias.h"

namespace megatron {

// An encoder whose tokens see each other, and a decoder whose tokens see those before them and all of the
// encoder's. The layers are those of decoder-only models.
class T5Model final : public Module {
 public:
  T5Model(const ModelConfig& config, const ModelParallel& parallel, DType dtype);

  // Rows of source tokens; `lengths`, where given, says how many of each row are real: the rest is not seen.
  struct Source {
    Tensor ids;  // int64 [tokens]
    int64_t batch = 1, length = 1;
    std::vector<int64_t> lengths;
    bool training = true;    // else there is no dropout
    LayerObserver on_layer;  // told of the encoder's layers, then of the decoder's
  };
  Tensor encode(RankContext& ctx, const Source& source);  // [tokens, hidden]
  // From target ids, int64 [batch · length], and the encoder's states to the last hidden states.
  Tensor decode(RankContext& ctx, const Tensor& ids, int64_t length, const Source& source,
                const Tensor& states);
  Tensor token_losses(RankContext& ctx, const Tensor& hidden, const Tensor& labels);
  Tensor logits(RankContext& ctx, const Tensor& hidden);

  void visit(const ParameterVisitor& visitor) override;
  const ModelConfig& config() const { return config_; }

 private:
  // One of the two stacks.
  struct Stack {
    Stack(const std::string& name, const ModelConfig& config, const ModelParallel& parallel, bool cross);
    Tensor forward(RankContext& ctx, const Tensor& x, const SeqInfo& seq, const LayerObserver& on_layer,
                   int64_t first_layer);
    void visit(const ParameterVisitor& visitor);

    RelativeBias positions;
    std::vector<std::unique_ptr<TransformerLayer>> layers;
    Norm final_norm;
  };
  Parameter& output_weight() { return output_ ? *output_ : embedding_.table(); }
  Tensor mask(RankContext& ctx, const Source& source, int64_t queries) const;

  ModelConfig config_;
  ModelParallel parallel_;
  DType dtype_;
  Embedding embedding_;
  Stack encoder_, decoder_;
  std::unique_ptr<Parameter> output_;  // absent where the embedding serves
};

}  // namespace megatron
