#pragma once

#include "megatron/config/schema/model_config.h"
#include "megatron/nn/parameter.h"
#include "megatron/parallel/tensor/tensor_parallel.h"

namespace megatron {

// Into the smaller space that latent experts work in, or out of it: whole on every rank, each of which sends
// its own tokens through.
class LatentProjection final : public Module {
 public:
  LatentProjection(const std::string& name, int64_t in, int64_t out, Initializer initializer,
                   const ModelConfig& config, const TensorParallel& tp);
  Tensor forward(RankContext& ctx, const Tensor& x);
  void visit(const ParameterVisitor& visitor) override;

 private:
  Parameter weight_;
  std::unique_ptr<Parameter> bias_;
};

}  // namespace megatron
