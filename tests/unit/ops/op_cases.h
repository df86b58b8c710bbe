#pragma once

#include <cmath>
#include <functional>
#include <vector>

#include "megatron/ops/activation.h"
#include "megatron/ops/attention.h"
#include "megatron/ops/causal_conv.h"
#include "megatron/ops/channel_delta.h"
#include "megatron/ops/cross_entropy.h"
#include "megatron/ops/delta_rule.h"
#include "megatron/ops/dropout.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/embedding.h"
#include "megatron/ops/gated_norm.h"
#include "megatron/ops/index.h"
#include "megatron/ops/kl_divergence.h"
#include "megatron/ops/linear.h"
#include "megatron/ops/matmul.h"
#include "megatron/ops/moe.h"
#include "megatron/ops/norm.h"
#include "megatron/ops/qkv.h"
#include "megatron/ops/quantize.h"
#include "megatron/ops/reduce.h"
#include "megatron/ops/rope.h"
#include "megatron/ops/shape.h"
#include "megatron/ops/sinkhorn.h"
#include "megatron/ops/softmax.h"
#include "megatron/ops/ssd.h"
#include "megatron/ops/weight_rows.h"
#include "megatron/ops/weight_tensor.h"
#include "megatron/ops/wide_linear.h"

namespace megatron::testing {

using Tensors = std::vector<Tensor>;
using Weights = std::vector<Weight>;

// An op as a function of inputs and weights that are all given a gradient.
struct OpCase {
  const char* name;
  std::vector<Shape> inputs, weights;  // the first size of an input is its number of rows
  std::function<std::vector<Tensor>(RankContext&, const std::vector<Tensor>&, const std::vector<Weight>&)>
      run;
  bool wide_output = false;   // fp32 also of narrower inputs
  bool wide_weights = false;  // they stay in the accumulation dtype

  DType weight_dtype(DType dtype) const { return wide_weights ? accumulation_dtype(dtype) : dtype; }
};

inline ops::Rotation rotation_for(RankContext& ctx, const Tensor& x) {
  std::vector<int64_t> positions(static_cast<size_t>(x.size(0)));
  for (size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<int64_t>(i);
  return ops::rope_tables(ctx, ctx.from_vector(positions, {x.size(0)}), ops::rope_frequencies(8, 10000),
                          x.dtype());
}

inline Tensor offsets_for(RankContext& ctx, int64_t rows) {
  auto n = static_cast<int32_t>(rows);
  return ctx.from_vector<int32_t>({0, n / 3, n / 3, n}, {4});
}

// Integers that go round in [first, first + count), in an order that repeats late.
inline Tensor numbers(RankContext& ctx, Shape shape, int64_t count, int64_t first = 0) {
  std::vector<int64_t> values(static_cast<size_t>(shape.numel()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = first + static_cast<int64_t>(i * i + i / 2) % count;
  return ctx.from_vector(values, shape);
}

// One label in the vocabulary of 40 a row, every third one ignored.
inline Tensor labels_for(RankContext& ctx, const Tensor& x) {
  std::vector<int64_t> labels(static_cast<size_t>(x.size(0)));
  for (size_t i = 0; i < labels.size(); ++i) labels[i] = i % 3 == 2 ? -100 : static_cast<int64_t>(i * 7 % 40);
  return ctx.from_vector(labels, {x.size(0)});
}

// Logits of a teacher, of the shape of x.
inline Tensor taught_for(RankContext& ctx, const Tensor& x) {
  std::vector<double> logits(static_cast<size_t>(x.numel()));
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = std::sin(static_cast<double>(i * i % 101));
  Tensor result = ctx.empty(x.shape(), x.dtype());
  ctx.kernels->copy(ctx.kernel_context(), {ctx.from_vector(logits, x.shape()), result});
  return result;
}

// Every op of the layer. What an op needs beside them (ids, labels, masks) is made from their number of rows.
inline std::vector<OpCase> op_cases() {
  using C = RankContext&;
  using T = const Tensors&;
  using W = const Weights&;
  return {
      {"linear",
       {{12, 16}},
       {{24, 16}, {24}},
       [](C c, T x, W w) { return Tensors{ops::linear(c, x[0], w[0], w[1])}; }},
      {"add_bias", {{12, 16}}, {{16}}, [](C c, T x, W w) { return Tensors{ops::add_bias(c, x[0], w[0])}; }},
      {"norm", {{12, 16}}, {{16}}, [](C c, T x, W w) { return Tensors{ops::norm(c, x[0], w[0])}; }},
      {"norm_with_residual",
       {{12, 16}, {12, 16}},
       {{16}, {16}},
       [](C c, T x, W w) {
         auto [y, sum] = ops::norm_with_residual(c, x[0], x[1], w[0], w[1], {.kind = NormKind::Layer});
         return Tensors{y, sum};
       }},
      {"rope",
       {{12, 3, 10}},
       {},
       [](C c, T x, W) { return Tensors{ops::rope(c, x[0], rotation_for(c, x[0]))}; }},
      {"activation",
       {{12, 16}},
       {{16}},
       [](C c, T x, W w) { return Tensors{ops::activation(c, Unary::Gelu, x[0], w[0])}; }},
      {"gated_activation",
       {{12, 16}},
       {{16}},
       [](C c, T x, W w) { return Tensors{ops::gated_activation(c, {}, x[0], w[0])}; }},
      {"wide_linear",
       {{12, 16}},
       {{8, 16}},
       [](C c, T x, W w) { return Tensors{ops::wide_linear(c, x[0], w[0])}; },
       true},
      {"activated_linear",
       {{12, 32}},
       {{24, 16}, {24}},
       [](C c, T x, W w) {
         return Tensors{
             ops::call_linear(
                 c, x[0], w[0],
                 {.bias = w[1], .input_activation = ops::ActivationOptions(), .keep_active = false})
                 .y};
       }},
      {"linear_activated",
       {{12, 16}},
       {{32, 16}, {32}, {24, 16}, {24}},
       [](C c, T x, W w) {
         auto [y, active] =
             ops::call_linear(c, x[0], w[0], {.bias = w[1], .output_activation = ops::ActivationOptions()});
         return Tensors{
             ops::call_linear(c, y, w[2],
                              {.bias = w[3], .input_activation = ops::ActivationOptions(), .active = active})
                 .y};
       }},
      {"linear_activated, GELU",
       {{12, 16}},
       {{32, 16}, {32}, {24, 32}, {24}},
       [](C c, T x, W w) {
         const ops::ActivationOptions gelu{.kind = Unary::GeluTanh, .gated = false};
         auto [y, active] = ops::call_linear(c, x[0], w[0], {.bias = w[1], .output_activation = gelu});
         return Tensors{
             ops::call_linear(c, y, w[2], {.bias = w[3], .input_activation = gelu, .active = active}).y};
       }},
      {"dropout",
       {{12, 16}, {12, 16}},
       {},
       [](C c, T x, W) {
         return Tensors{ops::dropout(c, x[0], 0.25, {1, 2}, {}, x[1])};
       }},
      {"add",
       {{12, 16}, {1, 16}},
       {},
       [](C c, T x, W) { return Tensors{ops::add(c, x[0], ops::sum(c, x[1], 0))}; }},
      {"sub", {{12, 16}, {12, 1}}, {}, [](C c, T x, W) { return Tensors{ops::sub(c, x[0], x[1])}; }},
      {"mul", {{12, 16}, {12, 16}}, {}, [](C c, T x, W) { return Tensors{ops::mul(c, x[0], x[1])}; }},
      {"div",
       {{12, 16}, {12, 16}},
       {},
       [](C c, T x, W) { return Tensors{ops::div(c, x[0], ops::activation(c, Unary::Exp, x[1]))}; }},
      {"axpby",
       {{12, 16}, {12, 16}},
       {},
       [](C c, T x, W) { return Tensors{ops::axpby(c, 2, x[0], -0.5, x[1])}; }},
      {"scale", {{12, 16}}, {}, [](C c, T x, W) { return Tensors{ops::scale(c, x[0], 3)}; }},
      {"where",
       {{12, 16}, {12, 16}},
       {},
       [](C c, T x, W) {
         Tensor mask = ops::compare(c, Comparison::Less, x[0].detach(), x[1].detach());
         return Tensors{ops::where(c, mask, x[0], x[1])};
       }},
      {"shapes",
       {{12, 16}, {12, 4}},
       {},
       [](C c, T x, W) {
         auto parts = ops::chunk(c, x[0], 4, 1);
         Tensor joined = ops::concat(c, Tensors{parts[2], x[1], ops::slice(c, x[0], 1, 3, 5)}, 1);
         return Tensors{ops::contiguous(c, ops::transpose(c, joined, 0, 1)), ops::view(c, x[1], {-1, 2})};
       }},
      {"sum",
       {{12, 16}},
       {},
       [](C c, T x, W) {
         return Tensors{ops::sum(c, x[0], 0), ops::sum(c, x[0], 1)};
       }},
      {"mean", {{12, 16}}, {}, [](C c, T x, W) { return Tensors{ops::mean(c, x[0], 1)}; }},
      {"max",
       {{12, 16}},
       {},
       [](C c, T x, W) {
         return Tensors{ops::max(c, x[0], 1), ops::min(c, x[0], 1)};
       }},
      {"softmax", {{12, 16}}, {}, [](C c, T x, W) { return Tensors{ops::softmax(c, x[0])}; }},
      {"matmul",
       {{12, 16}, {12, 20}},
       {},
       [](C c, T x, W) { return Tensors{ops::matmul(c, x[0], x[1], {.transpose_a = true})}; }},
      {"grouped_linear",
       {{12, 16}},
       {{3, 8, 16}},
       [](C c, T x, W w) {
         return Tensors{ops::call_linear(c, x[0], w[0], {.offsets = offsets_for(c, x[0].size(0))}).y};
       }},
      {"causal_conv",
       {{12, 16}},
       {{16, 1, 4}, {16}},
       [](C c, T x, W w) { return Tensors{ops::causal_conv(c, x[0], w[0], w[1], {.count = 2, .cu = {}})}; }},
      {"gated_norm",
       {{12, 16}, {12, 16}},
       {{16}},
       [](C c, T x, W w) {
         return Tensors{ops::gated_norm(c, x[0], x[1], w[0], {.groups = 2, .sum_over_ranks = {}})};
       }},
      {"ssd",
       {{12, 16}, {12, 4}},
       {{4}, {4}, {4}},
       [](C c, T x, W w) {
         return Tensors{ops::ssd(c, x[0], x[1], {w[0], w[1], w[2]},
                                 {.heads = 4, .channels = 2, .groups = 2, .states = 2, .chunk = 4},
                                 {.count = 2, .cu = {}})};
       },
       false,
       true},
      {"delta_rule",
       {{12, 16}, {12, 4}, {12, 4}},
       {{4}, {4}},
       [](C c, T x, W w) {
         return Tensors{ops::delta_rule(
             c, x[0], x[1], x[2], w[0], w[1],
             {.key_heads = 2, .value_heads = 4, .key_channels = 2, .value_channels = 2, .chunk = 4},
             {.count = 2, .cu = {}})};
       },
       false,
       true},
      {"channel_delta",
       {{12, 4}, {12, 4}, {12, 4}, {12, 4}, {12, 8}},
       {},
       [](C c, T x, W) {
         return Tensors{ops::channel_delta(
             c, {x[0], x[1], x[2], ops::cast(c, x[3], accumulation_dtype(x[3].dtype())), x[4]},
             {.key_heads = 2, .value_heads = 4, .key_channels = 2, .value_channels = 2, .chunk = 4},
             {.count = 2, .cu = {}})};
       },
       false,
       true},
      {"sinkhorn",
       {{12, 3, 3}},
       {},
       [](C c, T x, W) {
         return Tensors{ops::sinkhorn(c, ops::cast(c, x[0], accumulation_dtype(x[0].dtype())), 4)};
       },
       true},
      {"split_qkv",
       {{12, 128}},
       {},
       [](C c, T x, W) {
         auto [q, k, v] = ops::split_qkv(c, x[0], 4, 2, 16, rotation_for(c, x[0]));
         return Tensors{q, k, v};
       }},
      {"fused_attention",
       {{12, 96}},
       {{4}},
       [](C c, T x, W w) {
         ops::AttentionOptions options{.batch = 2, .window_left = 3, .sinks = w[0]};
         return Tensors{ops::fused_attention(c, x[0], {4, 4, 8}, rotation_for(c, x[0]), options).o};
       }},
      {"attention",
       {{12, 4, 8}, {12, 2, 8}, {12, 2, 16}},
       {{4}},
       [](C c, T x, W w) {
         ops::AttentionOptions options{.batch = 2, .window_left = 3, .softcap = 20, .sinks = w[0]};
         return Tensors{ops::attention(c, x[0], x[1], x[2], options).o};
       }},
      {"embedding",
       {{12, 16}},
       {{20, 16}},
       [](C c, T x, W w) {
         Tensor ids = numbers(c, {x[0].size(0)}, 20);
         return Tensors{ops::add(c, x[0], ops::embedding(c, w[0], ids))};
       }},
      {"cross_entropy",
       {{12, 40}},
       {},
       [](C c, T x, W) {
         return Tensors{ops::cross_entropy(c, x[0], labels_for(c, x[0]), {.smoothing = 0.1, .z_loss = 0.01})};
       },
       true},
      {"linear_cross_entropy",
       {{12, 16}},
       {{40, 16}},
       [](C c, T x, W w) {
         return Tensors{ops::linear_cross_entropy(c, x[0], w[0], labels_for(c, x[0]), {}, 1, 5)};
       },
       true},
      {"kl_divergence",
       {{12, 40}},
       {},
       [](C c, T x, W) {
         return Tensors{ops::kl_divergence(c, x[0], taught_for(c, x[0]), {.temperature = 1.5})};
       },
       true},
      {"gather_rows",
       {{12, 16}},
       {},
       [](C c, T x, W) {
         return Tensors{ops::gather_rows(c, x[0], numbers(c, {2 * x[0].size(0)}, x[0].size(0) + 1))};
       }},
      {"scatter_add_rows",
       {{12, 16}},
       {},
       [](C c, T x, W) { return Tensors{ops::scatter_add_rows(c, x[0], numbers(c, {x[0].size(0)}, 6), 5)}; }},
      {"gather_columns",
       {{12, 16}},
       {},
       [](C c, T x, W) {
         return Tensors{ops::gather_columns(c, x[0], numbers(c, {x[0].size(0), 3}, 16))};
       }},
      {"top_k", {{12, 16}}, {}, [](C c, T x, W) { return Tensors{ops::top_k(c, x[0], 3).values}; }},
      {"experts",
       {{12, 16}, {12, 2}},
       {},
       [](C c, T x, W) {
         ops::ExpertOrder order = ops::expert_sort(c, numbers(c, {x[0].size(0), 2}, 5, -1), 4, 4);
         Tensor rows = ops::permute(c, x[0], order);
         return Tensors{ops::unpermute(c, rows, order, x[1]), ops::unpermute(c, rows, order)};
       }},
      {"quantize",
       {{12, 16}},
       {},
       [](C c, T x, W) {
         ops::Quantized narrow = ops::quantize(c, x[0].detach(), DType::F8E4M3, 4, 8);
         return Tensors{ops::add(c, x[0], ops::dequantize(c, narrow, x[0].dtype()))};
       }},
      {"cast",
       {{12, 16}},
       {},
       [](C c, T x, W) {
         return Tensors{ops::cast(c, ops::scale(c, ops::cast(c, x[0], DType::F64), 3), x[0].dtype())};
       }},
      {"compare",
       {{12, 16}, {12, 16}},
       {},
       [](C c, T x, W) {
         Tensor mask = ops::compare(c, Comparison::LessEqual, x[0].detach(), x[1].detach());
         return Tensors{ops::mul(c, ops::cast(c, mask, x[0].dtype()), ops::add(c, x[0], x[1]))};
       }},
      {"weight_tensor",
       {{12, 16}},
       {{16}},
       [](C c, T x, W w) { return Tensors{ops::mul(c, x[0], ops::weight_tensor(c, w[0], x[0].dtype()))}; }},
      {"weight_rows",
       {{12, 4}},
       {{6}},
       [](C c, T x, W w) {
         const Weight rows = ops::weight_rows(c, w[0], {{4, 6}, {1, 2}, {4, 5}});  // one of them twice
         return Tensors{ops::mul(c, x[0], ops::weight_tensor(c, rows, x[0].dtype()))};
       }},
      {"expand",
       {{12, 1}},
       {},
       [](C c, T x, W) {
         return Tensors{ops::expand(c, x[0], {3, x[0].size(0), 4})};
       }},
  };
}

}  // namespace megatron::testing
