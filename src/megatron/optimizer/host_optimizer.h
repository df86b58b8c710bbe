#pragma once

#include <functional>
#include <memory>

#include "megatron/optimizer/optimizer.h"

namespace megatron {

// An optimizer whose state lies in host memory and whose step the host computes: gradients come over, values
// go back. Its bits are those of the same optimizer on the CPU. On a GPU the copies go through pinned memory
// on the device's stream, and the step waits for them.
class HostOptimizer final : public Optimizer {
 public:
  using Make = std::function<std::unique_ptr<Optimizer>(RankContext&, std::vector<ParameterSlice>)>;

  // `make` makes the optimizer of slices that lie on the host.
  HostOptimizer(RankContext& ctx, std::vector<ParameterSlice> slices, const Make& make);

  void step(RankContext& ctx, const Rates& rates, const Tensor& gradient_scale, const Tensor& gate) override;
  std::vector<OptimizerTensor> state() const override;
  ChangeGroups change_groups() const override;  // of the device: all at once
  void multiply(RankContext& ctx, const Parameter& parameter, const Tensor& factors) override;
  void begin_load(RankContext& ctx) override;
  void read_parameters(RankContext& ctx) override;
  std::vector<ParameterSlice> master_slices() const override { return device_; }  // as the model has them
  void set_steps(int64_t steps) override;

 private:
  Tensor host_tensor(const Tensor& like) const;
  Tensor brought(RankContext& ctx, const Tensor& tensor) const;  // undefined where `tensor` is
  static void bring(RankContext& ctx, const Tensor& from_device, const Tensor& to_host);
  void read_values(RankContext& ctx);
  void write_values(RankContext& ctx);

  std::vector<ParameterSlice> device_, mirrors_;
  std::unique_ptr<RankContext> host_;
  std::shared_ptr<Allocator> memory_;
  std::unique_ptr<Optimizer> inner_;
};

// The first slices up to `fraction` of all elements, and the others.
struct SplitSlices {
  std::vector<ParameterSlice> on_host, on_device;
};
SplitSlices split_slices(std::vector<ParameterSlice> slices, double fraction);

}  // namespace megatron
