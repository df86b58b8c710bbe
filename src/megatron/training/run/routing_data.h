#pragma once

#include <memory>
#include <string>

#include "megatron/config/schema/model_config.h"
#include "megatron/datasets/batch_source.h"

namespace megatron {

// Experts of `tokens` tokens, of "FILE.safetensors:KEY", whose last two dimensions are the layers with
// experts and k, on the host: int64 [tokens, layers, k]. `what` is how messages begin.
Tensor read_routing(std::string_view what, const std::string& source, int64_t tokens,
                    const ModelConfig& model);

// Batches of `source` with the experts of their tokens. `experts`: of global batches of `batch` rows, one
// after the other.
std::shared_ptr<const BatchSource> with_routing(std::shared_ptr<const BatchSource> source,
                                                const Tensor& experts, int64_t batch);

}  // namespace megatron
