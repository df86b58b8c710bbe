#pragma once

#include "megatron/optimizer/matrix_parts.h"
#include "megatron/optimizer/newton_schulz.h"
#include "megatron/optimizer/optimizer.h"

namespace megatron {

// A second moment of the orthogonal direction, which the update is divided by (adaptive Muon).
struct MuonSecondMoment {
  SecondMoment method = SecondMoment::adamuon;
  double beta2 = 0.95, epsilon = 1e-8;
};

struct MuonOptions {
  double momentum = 0.95, weight_decay = 0.01;
  bool nesterov = false;
  MuonScale scale = MuonScale::spectral;
  double extra_scale = 1;
  std::vector<NewtonSchulzStep> steps = newton_schulz_steps(MuonCoefficients::quintic, 5);
  MuonTpMode tp_mode = MuonTpMode::duplicated;
  // Rows of queries, keys and values in each query group of a fused projection; empty: it is one matrix.
  std::vector<int64_t> qkv_rows = {};
  MatrixGroups dense = {}, expert = {};
  std::optional<MuonSecondMoment> second = {};
  ParameterGroups groups = {};
};

// Momentum whose direction is made orthogonal, for matrices: [rows, columns], or [experts, rows, columns],
// each expert's by itself. Weight decay is decoupled. A matrix that data-parallel ranks share out is put
// together on those that have a part of it; what tensor-parallel ranks share, as the mode says.
class Muon final : public Optimizer {
 public:
  Muon(RankContext& ctx, std::vector<ParameterSlice> slices, const MuonOptions& options);

  void step(RankContext& ctx, const Rates& rates, const Tensor& gradient_scale = {},
            const Tensor& gate = {}) override;
  std::vector<OptimizerTensor> state() const override;

 private:
  // The orthogonal, scaled form of a slice's direction.
  Tensor update_of(RankContext& ctx, const ParameterSlice& slice, const Tensor& direction) const;
  Tensor scaled(RankContext& ctx, const Tensor& matrices, int64_t rows, int64_t columns,
                const ShardedMatrix* split) const;
  Tensor scaled_parts(RankContext& ctx, const Parameter& parameter, const Tensor& matrices,
                      const ShardedMatrix* split) const;
  bool has_parts(const Parameter& parameter) const;
  // The direction of slice i, divided by the root of its second moment, which moves on, and scaled.
  Tensor adapted(RankContext& ctx, size_t i, const Tensor& direction, const Tensor& gate);
  Tensor by_elements(RankContext& ctx, size_t i, const Tensor& direction, const Tensor& gate);
  Tensor by_rows(RankContext& ctx, size_t i, const Tensor& direction, const Tensor& gate);
  int64_t group_rows() const;

  MuonOptions options_;
  std::vector<Tensor> momenta_;
  std::vector<Tensor>
      moments_;  // second ones, of elements; of rows or columns, the same number in all of one
};

}  // namespace megatron
