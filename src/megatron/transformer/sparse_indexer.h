#pragma once

#include "megatron/nn/seq_info.h"
#include "megatron/parallel/model_parallel.h"
#include "megatron/transformer/moe/aux_loss.h"
#include "megatron/transformer/norm.h"

namespace megatron {

// The lightning indexer of DeepSeek's sparse attention (DSA): few narrow heads score every key of a query,
//   score(t, s) = Σ over heads of w(t, head) · relu(q(t, head) · k(s)),
// and the query attends to the best keys alone. It reads the layer's input and latent queries, but learns by
// a loss of its own, so no gradient leaves it. Every rank of a tensor-parallel group computes all of it.
class SparseIndexer final : public Module {
 public:
  SparseIndexer(const std::string& name, int64_t layer, const ModelConfig& config,
                const ModelParallel& parallel);

  struct Result {
    Tensor scores;  // [batch, length, length] of the model's tokens, in fp32 at least, on the tape
    Tensor chosen;  // bool, the same shape: keys that a query attends to, as far as they stand before it
    Tensor bias;    // [batch, 1, length, length]: 0 for those, −1e30 for others, to be added to scores of
                    // attention
  };
  // x [tokens, hidden], latent queries [tokens, rank] behind their norm.
  Result forward(RankContext& ctx, const Tensor& x, const Tensor& queries, const SeqInfo& seq);

  // coefficient · mean over queries of KL(p ‖ softmax of the scores), where p is what the heads of attention
  // (queries and keys [tokens, heads, channels]) look at, all heads together; the same on every TP rank.
  // Undefined where nothing is to be learnt.
  Tensor loss(RankContext& ctx, const Result& result, const Tensor& queries, const Tensor& keys, double scale,
              const SeqInfo& seq);
  std::vector<AuxLossSum> take_losses();
  void visit(const ParameterVisitor& visitor) override;

 private:
  Tensor scores_of(RankContext& ctx, const Tensor& x, const Tensor& queries, const SeqInfo& seq);

  int64_t layer_, heads_, width_, topk_;
  double coefficient_;
  bool chosen_alone_, interleaved_, relu_;
  TensorParallel tp_;
  Parameter query_, key_, weights_;
  Norm key_norm_;
  Tensor logged_;
};

}  // namespace megatron
