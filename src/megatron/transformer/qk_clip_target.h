#pragma once

#include <functional>

#include "megatron/nn/parameter.h"

namespace megatron {

// What a row of a weight makes: scores are products of queries and keys, and of parts that are scaled on the
// queries' side alone (rotated queries of latent attention, whose keys all heads share).
enum class QkPart : uint8_t { none, query, key, lone_query };

struct ClippedRow {
  int64_t group;
  QkPart part;
};

// What --qk-clip reads and scales of one attention layer.
struct QkClipTarget {
  int64_t heads = 0, groups = 0;          // of the whole layer; heads of a group share their keys
  int64_t first_head = 0, own_heads = 0;  // of this rank
  struct ClippedWeight {
    Parameter* weight;
    std::function<ClippedRow(int64_t row)> row;  // by its index in the global weight
  };
  std::vector<ClippedWeight> weights;
  // [own heads]: the largest scores of this rank's queries since the last update, 0 at least.
  Tensor max_scores;

  // As attention wants them, for scores of queries of `dtype`.
  const Tensor& tracked(RankContext& ctx, DType dtype) {
    if (!max_scores) max_scores = ctx.zeros({own_heads}, accumulation_dtype(dtype), MemoryTag::Parameter);
    return max_scores;
  }
};

}  // namespace megatron
