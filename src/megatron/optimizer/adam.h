#pragma once

#include "megatron/kernels/optimizer.h"
#include "megatron/optimizer/optimizer.h"

namespace megatron {

struct AdamOptions {
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0.01;
  bool decoupled = true;
  ParameterGroups groups = {};  // their scale is one of epsilon too
  Masters masters = Masters::Whole;
  // Of the moments, where parameters are not fp64; fp16 and fp8 have a scale for each tensor.
  DType first = DType::F32, second = DType::F32;
};

// Adam or AdamW.
class Adam final : public Optimizer {
 public:
  Adam(RankContext& ctx, std::vector<ParameterSlice> slices, const AdamOptions& options);

  void step(RankContext& ctx, const Rates& rates, const Tensor& gradient_scale = {},
            const Tensor& gate = {}) override;
  std::vector<OptimizerTensor> state() const override;
  ChangeGroups change_groups() const override;
  void step_by_groups(RankContext& ctx, const Rates& rates, const Tensor& gradient_scale, const Tensor& gate,
                      const std::function<void(size_t group)>& before) override;

 private:
  // Of tensors of one rate.
  struct Rate {
    double lr, epsilon;
    auto operator<=>(const Rate&) const = default;
  };
  bool scaled(size_t i) const { return scaled_first_[i] || scaled_second_[i] || half_masters_[i]; }
  AdamTensor tensor_of(size_t i, const Rates& rates) const;
  // Slices of about as many elements each.
  std::vector<std::vector<size_t>> slice_groups() const;
  void update_slices(RankContext& ctx, std::span<const size_t> slices, const Rates& rates,
                     const Tensor& gradient_scale, const Tensor& gate) const;
  void update(RankContext& ctx, std::span<const AdamTensor> tensors, const Rate& rate,
              const Tensor& gradient_scale, const Tensor& gate) const;
  void update_scaled(RankContext& ctx, size_t i, AdamTensor tensor, const Rate& rate,
                     const Tensor& gradient_scale, const Tensor& gate) const;
  static void trace_step(RankContext& ctx, std::span<const AdamTensor> tensors);

  AdamOptions options_;
  std::vector<Tensor> first_, second_;
  std::vector<ScaledState> scaled_first_, scaled_second_;
};

}  // namespace megatron
