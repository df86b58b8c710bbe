#include "megatron/transformer/initializers.h"

#include <cmath>

namespace megatron {

Initializer input_initializer(const ModelConfig& config) {
  if (config.init_method_xavier_uniform) return Initializer::xavier_uniform();
  return Initializer::normal(config.init_method_std);
}

Initializer output_initializer(const ModelConfig& config) {
  if (config.init_method_xavier_uniform) return Initializer::xavier_uniform();
  const double parts = config.is_hybrid_model ? 1 : 2;  // of a layer
  return Initializer::normal(config.init_method_std /
                             std::sqrt(parts * static_cast<double>(config.num_layers)));
}

}  // namespace megatron
