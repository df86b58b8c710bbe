#pragma once

#include "megatron/autograd/rank_context.h"

namespace megatron::ops {

struct Rotation {
  Tensor cos, sin;  // [tokens, frequencies]; undefined: no rotation
  bool interleaved = false;
};

struct QkvHeads {
  Tensor q, k, v;  // [tokens, heads, head_dim]
};

// Of a fused projection [tokens, groups · (heads / groups + 2) · head_dim], ordered by query group: its
// queries, one key, one value.
struct QkvShape {
  int64_t heads, groups, head_dim;

  int64_t columns() const { return (heads + 2 * groups) * head_dim; }
  // Whether equal steps lead from each query head to the next: views of the projection then are q, k and v.
  bool even() const { return heads == groups || groups == 1; }
};

// Splits a fused projection qkv [tokens, groups · (heads / groups + 2) · head_dim], ordered by query group,
// and turns q and k.
QkvHeads split_qkv(RankContext& ctx, const Tensor& qkv, int64_t heads, int64_t groups, int64_t head_dim,
                   const Rotation& rotation = {});

// For ops that read a projection where it lies; these record nothing.
void check_projection(const RankContext& ctx, const char* op, const Tensor& qkv, const QkvShape& shape,
                      const Rotation& rotation);
// q, k and v of a projection whose shape is even().
QkvHeads views_of(const Tensor& qkv, const QkvShape& shape);
// Turns queries and keys: in place where nobody else holds the memory, otherwise qkv becomes a copy.
void turn_projection(RankContext& ctx, Tensor& qkv, const QkvShape& shape, const Rotation& rotation,
                     bool inverse = false);

}  // namespace megatron::ops
