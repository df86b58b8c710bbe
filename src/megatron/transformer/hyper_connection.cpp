#include "megatron/transformer/hyper_connection.h"

#include <cmath>
#include <limits>

#include "megatron/autograd/recompute.h"
#include "megatron/ops/activation.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/linear.h"
#include "megatron/ops/matmul.h"
#include "megatron/ops/reduce.h"
#include "megatron/ops/shape.h"
#include "megatron/ops/sinkhorn.h"
#include "megatron/ops/weight_tensor.h"

namespace megatron {
namespace {

constexpr double kNormEpsilon = 1e-6;  // added to the root of the mean square of a token's streams

Parameter scale(const std::string& name, const ModelConfig& config) {
  return Parameter(name, ShardSpec::whole({1}), Initializer::constant(config.mhc_init_gating_factor));
}

int64_t outputs(int64_t streams) { return streams * streams + 2 * streams; }

}  // namespace

HyperConnection::HyperConnection(const std::string& name, const ModelConfig& config, const TensorParallel& tp)
    : streams_(config.mhc_num_residual_streams),
      hidden_(config.hidden_size),
      iterations_(config.mhc_sinkhorn_iterations),
      projection_(name + ".mapping_proj.weight", ShardSpec::whole({outputs(streams_), streams_ * hidden_}),
                  Initializer::xavier_uniform()),
      pre_scale_(scale(name + ".alpha_pre", config)),
      post_scale_(scale(name + ".alpha_post", config)),
      mixing_scale_(scale(name + ".alpha_res", config)),
      bias_(name + ".bias", ShardSpec::whole({outputs(streams_)}), Initializer::constant(0)) {
  visit([&](Parameter& parameter) { parameter.partial_over_tp = tp.splits_tokens(); });
}

std::vector<Tensor> HyperConnection::map(RankContext& ctx, const Tensor& streams) {
  const int64_t tokens = streams.size(0), n = streams_;
  const DType dtype = streams.dtype(), wide = accumulation_dtype(dtype);
  const Tensor x = ops::cast(ctx, streams, wide);
  // The root of 0, of a token whose streams are all 0, would have no gradient.
  const Tensor smallest = ctx.full(
      {1}, wide, wide == DType::F64 ? std::numeric_limits<double>::min() : std::numeric_limits<float>::min());
  const Tensor squares = ops::add(ctx, ops::sum(ctx, ops::mul(ctx, x, x), 1, true), smallest);
  const Tensor length = ops::activation(ctx, Unary::Sqrt, squares);
  const Tensor root = ops::add(ctx, ops::scale(ctx, length, 1 / std::sqrt(static_cast<double>(n * hidden_))),
                               ctx.full({1}, wide, kNormEpsilon));
  const auto repeated = [&](Parameter& parameter, int64_t count) {
    return ops::expand(ctx, ops::weight_tensor(ctx, parameter.get(ctx), wide), {count});
  };
  const Tensor scales[] = {repeated(pre_scale_, n), repeated(post_scale_, n), repeated(mixing_scale_, n * n)};
  Tensor h = ops::cast(ctx, ops::linear(ctx, streams, projection_.get(ctx)), wide);
  h = ops::mul(ctx, ops::div(ctx, h, root), ops::concat(ctx, scales, 0));
  h = ops::add(ctx, h, ops::weight_tensor(ctx, bias_.get(ctx), wide));
  const int64_t sizes[] = {n, n, n * n};
  const std::vector<Tensor> parts = ops::split(ctx, h, sizes, 1);
  const auto gate = [&](const Tensor& part, double factor) {
    const Tensor open = ops::activation(ctx, Unary::Sigmoid, ops::contiguous(ctx, part));
    return ops::cast(ctx, ops::scale(ctx, open, factor), dtype);
  };
  const Tensor mixed =
      ops::sinkhorn(ctx, ops::view(ctx, ops::contiguous(ctx, parts[2]), {tokens, n, n}), iterations_);
  const Tensor input = ops::matmul(ctx, ops::view(ctx, gate(parts[0], 1), {tokens, 1, n}),
                                   ops::view(ctx, streams, {tokens, n, hidden_}));
  return {ops::view(ctx, input, {tokens, hidden_}), ops::view(ctx, gate(parts[1], 2), {tokens, n, 1}),
          ops::cast(ctx, mixed, dtype)};
}

HyperConnection::Mapping HyperConnection::read(RankContext& ctx, const Tensor& streams, bool again) {
  const std::vector<Tensor> made =
      again ? recompute(ctx, {&streams, 1},
                        [this](RankContext& c, std::span<const Tensor> in) { return map(c, in[0]); })
            : map(ctx, streams);
  return {made[0], made[1], made[2]};
}

Tensor HyperConnection::write(RankContext& ctx, const Tensor& streams, const Mapping& mapping,
                              const Tensor& y, const Dropout& drop, bool again) const {
  const auto join = [n = streams_, hidden = hidden_, drop](RankContext& c, std::span<const Tensor> in) {
    const int64_t tokens = in[0].size(0);
    const Tensor kept = ops::matmul(c, in[1], ops::view(c, in[0], {tokens, n, hidden}));
    const Tensor added = ops::mul(c, in[2], ops::view(c, in[3], {tokens, 1, hidden}));
    const Shape shape{tokens, n * hidden};
    return std::vector<Tensor>{ops::add(c, ops::view(c, kept, shape), drop(c, ops::view(c, added, shape)))};
  };
  const Tensor inputs[] = {streams, mapping.mixed, mapping.post, y};
  return (again ? recompute(ctx, inputs, join) : join(ctx, inputs))[0];
}

void HyperConnection::visit(const ParameterVisitor& visitor) {
  for (Parameter* parameter : {&projection_, &pre_scale_, &post_scale_, &mixing_scale_, &bias_})
    visitor(*parameter);
}

Tensor expand_streams(RankContext& ctx, const Tensor& x, int64_t streams) {
  const int64_t tokens = x.size(0), hidden = x.size(1);
  const Tensor copies = ops::expand(ctx, ops::view(ctx, x, {tokens, 1, hidden}), {tokens, streams, hidden});
  return ops::view(ctx, ops::contiguous(ctx, copies), {tokens, streams * hidden});
}

Tensor contract_streams(RankContext& ctx, const Tensor& x, int64_t streams) {
  return ops::mean(ctx, ops::view(ctx, x, {x.size(0), streams, x.size(1) / streams}), 1);
}

}  // namespace megatron
