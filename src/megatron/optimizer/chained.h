#pragma once

#include <memory>

#include "megatron/optimizer/optimizer.h"

namespace megatron {

// Several optimizers as one, each with slices of its own.
class ChainedOptimizer final : public Optimizer {
 public:
  ChainedOptimizer(RankContext& ctx, std::vector<std::unique_ptr<Optimizer>> parts);

  void step(RankContext& ctx, const Rates& rates, const Tensor& gradient_scale = {},
            const Tensor& gate = {}) override;
  std::vector<OptimizerTensor> state() const override;
  ChangeGroups change_groups() const override;
  void step_by_groups(RankContext& ctx, const Rates& rates, const Tensor& gradient_scale, const Tensor& gate,
                      const std::function<void(size_t group)>& before) override;
  void multiply(RankContext& ctx, const Parameter& parameter, const Tensor& factors) override;
  void begin_load(RankContext& ctx) override;
  void read_parameters(RankContext& ctx) override;
  std::vector<ParameterSlice> master_slices() const override;
  void set_steps(int64_t steps) override;

 private:
  std::vector<std::unique_ptr<Optimizer>> parts_;
};

}  // namespace megatron
