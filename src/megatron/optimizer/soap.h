#pragma once

#include <array>

#include "megatron/optimizer/matrix_parts.h"
#include "megatron/optimizer/optimizer.h"

namespace megatron {

struct SoapOptions {
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0.01;
  double shampoo_beta = 0.95;  // memory of the Kronecker factors, corrected for its beginning
  bool kl_shampoo = true;      // each factor weighs gradients by the inverse of the other one
  MatrixGroups dense = {}, expert = {};
  ParameterGroups groups = {};
};

// Adam in the eigenbasis of Shampoo's Kronecker factors (SOAP), for matrices: [rows, columns], or [experts,
// rows, columns], each expert's by itself. L ≈ G Gᵀ and R ≈ Gᵀ G have the bases Q_L and Q_R, which one step
// of orthogonal iteration follows at each update; the first moment turns with them. Bases are found on the
// host. Weight decay is decoupled. Each rank that updates a part of a matrix has the state of the whole one,
// gathers its gradient and computes the same, so that no layout changes the result.
class Soap final : public Optimizer {
 public:
  Soap(RankContext& ctx, std::vector<ParameterSlice> slices, const SoapOptions& options);

  void step(RankContext& ctx, const Rates& rates, const Tensor& gradient_scale = {},
            const Tensor& gate = {}) override;
  std::vector<OptimizerTensor> state() const override;

 private:
  // What one side of a matrix has: its Kronecker factor, the eigenbasis (a vector a column) and eigenvalues.
  struct Side {
    Tensor factor, basis, values;
  };
  struct State {
    Side left, right;
    Tensor first, second;  // moments in the bases
  };
  const MatrixGroups& groups_of(const Parameter& parameter) const;
  // [matrices, rows, columns] of the whole matrix's gradient.
  Tensor whole_gradient(RankContext& ctx, size_t i, const Tensor& gradient_scale) const;
  // The factors' new values: left, right.
  std::array<Tensor, 2> factors(RankContext& ctx, const State& state, const Tensor& gradient) const;
  // The direction of the whole matrix; the state moves on where the gate is open.
  Tensor direction(RankContext& ctx, State& state, const Tensor& gradient, const Tensor& gate) const;

  SoapOptions options_;
  std::vector<State> states_;
};

}  // namespace megatron
