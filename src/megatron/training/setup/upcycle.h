#pragma once

#include "megatron/checkpoint/tensor_source.h"
#include "megatron/config/config.h"

namespace megatron {

// Whether a checkpoint has no experts.
bool is_dense(const TensorSource& source);

// A dense checkpoint as one of a model with experts: each MLP becomes the experts of its layer. With a
// granularity of G an expert has one of G parts of the MLP's width, expert e part e mod G; the G experts of a
// copy share one row of the router, which is drawn, so that a token goes to whole copies. Weights are scaled
// so that what the router's probabilities take away comes back (arXiv:2410.07524); without a granularity, and
// with probabilities that sum to one, they are the MLP's own, and the model computes what the dense one does.
// A ConfigError where widths do not fit.
TensorSource upcycled(TensorSource dense, const ModelConfig& model, uint64_t seed);

}  // namespace megatron
