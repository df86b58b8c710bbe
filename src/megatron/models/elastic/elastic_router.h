#pragma once

#include <string>
#include <vector>

#include "megatron/models/elastic/elastic_draw.h"
#include "megatron/nn/parameter.h"
#include "megatron/nn/seq_info.h"
#include "megatron/parallel/model_parallel.h"
#include "megatron/transformer/moe/aux_loss.h"

namespace megatron {

// Chooses the widths of a sub-network by its budget: for each axis that varies a network of two layers, from
// the budget's place in the list to a probability of each width, with Gumbel's noise. All ranks choose the
// same; each has the gradients of its own activations.
class ElasticRouter final : public Module {
 public:
  ElasticRouter(std::shared_ptr<const ElasticSpec> spec, const ModelParallel& parallel, DType dtype);
  // Probabilities of all widths, [1, choices], axis behind axis, at least fp32.
  Tensor forward(RankContext& ctx, const SeqInfo& seq);
  // x, whose backward pass adds the gradient of the budget loss of the step's choice.
  Tensor with_budget_loss(RankContext& ctx, const Tensor& x, const Tensor& choice, const SeqInfo& seq);
  // The loss since it was last taken.
  std::vector<AuxLossSum> take_losses() { return std::exchange(logged_, {}); }
  void visit(const ParameterVisitor& visitor) override;

 private:
  struct Gate {
    std::unique_ptr<Parameter> fc1, fc2;
  };
  Tensor probabilities(RankContext& ctx, size_t axis, const ElasticDraw& draw);
  Tensor logits(RankContext& ctx, Gate& gate, const ElasticDraw& draw);
  Tensor share(RankContext& ctx, const Tensor& choice, size_t axis);
  Tensor budget_loss(RankContext& ctx, const Tensor& choice, double budget);

  std::shared_ptr<const ElasticSpec> spec_;
  DType dtype_;   // it computes in
  double ranks_;  // that make the same loss
  std::array<Gate, kElasticAxes> gates_;
  std::vector<AuxLossSum> logged_;
};

}  // namespace megatron
