#pragma once

#include <array>

#include "megatron/ops/qkv.h"
#include "megatron/ops/rope_frequencies.h"

namespace megatron::ops {

// cos and sin of every token's angles, in fp32 (fp64 for an fp64 model). positions: int64 [tokens], or
// [3, tokens] with `sections`, the number of consecutive frequencies that follow each of the three rows
// (mRoPE).
Rotation rope_tables(RankContext& ctx, const Tensor& positions, const RopeFrequencies& frequencies,
                     DType model_dtype, bool interleaved = false, std::array<int64_t, 3> sections = {});

// Turns the first 2 · frequencies elements of every head of x [tokens, heads, head_dim]; the rest passes.
Tensor rope(RankContext& ctx, const Tensor& x, const Rotation& rotation);

}  // namespace megatron::ops
