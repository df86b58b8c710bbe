#pragma once

#include "megatron/config/schema/model_config.h"
#include "megatron/nn/parameter.h"
#include "megatron/parallel/tensor/tensor_parallel.h"

namespace megatron {

// RMSNorm over the channels of all heads at once (OLMo), of which each tensor-parallel rank has its share.
class WideNorm final : public Module {
 public:
  // `units`: of which a rank has whole ones.
  WideNorm(const std::string& name, int64_t size, int64_t units, const ModelConfig& config,
           const TensorParallel& tp);
  Tensor forward(RankContext& ctx, const Tensor& x);  // [tokens, heads, channels]
  void visit(const ParameterVisitor& visitor) override { visitor(weight_); }

 private:
  int64_t size_;
  double epsilon_;
  TensorParallel tp_;
  Parameter weight_;
};

}  // namespace megatron
