#pragma once

#include "megatron/models/elastic/elastic_spec.h"
#include "megatron/nn/elastic_widths.h"
#include "megatron/parallel/model_parallel.h"

namespace megatron {

// Turns probabilities of widths into the factors of a rank's activations.
class ElasticMasks {
 public:
  ElasticMasks(std::shared_ptr<const ElasticSpec> spec, const ModelConfig& config,
               const ModelParallel& parallel);
  // `choice` [1, choices], axis behind axis.
  std::shared_ptr<const ElasticWidths> make(RankContext& ctx, const Tensor& choice);

 private:
  struct Axis {
    std::vector<double> masks, factors;   // of every choice: [choices, columns], [choices, 1]
    Tensor device_masks, device_factors;  // made when they are first needed
  };
  Tensor product(RankContext& ctx, const Tensor& choice, size_t axis, const std::vector<double>& values,
                 Tensor& kept) const;
  ElasticWidths::Normed normed(RankContext& ctx, const Tensor& choice, size_t axis, const Tensor& mask);

  std::shared_ptr<const ElasticSpec> spec_;
  std::array<Axis, kElasticAxes> axes_;
};

}  // namespace megatron
