#include "megatron/transformer/relative_bias.h"

#include <algorithm>
#include <cmath>

#include "megatron/ops/embedding.h"
#include "megatron/ops/shape.h"

namespace megatron {

int64_t relative_bucket(int64_t distance, int64_t buckets, int64_t max_distance, bool bidirectional) {
  int64_t offset = 0;
  if (bidirectional) {
    buckets /= 2;
    if (distance > 0) offset = buckets;
    distance = std::abs(distance);
  } else {
    distance = std::max<int64_t>(-distance, 0);
  }
  const int64_t exact = buckets / 2;  // so many distances have a bucket of their own
  if (distance < exact) return offset + distance;
  const double reach = std::log(static_cast<double>(distance) / static_cast<double>(exact)) /
                       std::log(static_cast<double>(max_distance) / static_cast<double>(exact));
  const auto further = static_cast<int64_t>(reach * static_cast<double>(buckets - exact));
  return offset + std::min(buckets - 1, exact + further);
}

RelativeBias::RelativeBias(const std::string& name, const ModelConfig& config, const TensorParallel& tp)
    : buckets_(config.relative_attention_num_buckets),
      max_distance_(config.relative_attention_max_distance),
      heads_(tp.count("relative bias: heads", config.num_attention_heads)),
      bidirectional_(config.bidirectional_attention),
      table_(name + ".relative_attention_bias.weight",
             tp.split(name, {buckets_, config.num_attention_heads}, 1, config.num_attention_heads),
             Initializer::normal(config.init_method_std)) {}

Tensor RelativeBias::forward(RankContext& ctx, int64_t queries, int64_t keys) {
  std::vector<int64_t> ids;
  for (int64_t query = 0; query < queries; ++query)
    for (int64_t key = 0; key < keys; ++key)
      ids.push_back(relative_bucket(key - query, buckets_, max_distance_, bidirectional_));
  Tensor rows = ops::embedding(ctx, table_.get(ctx), ctx.from_vector(ids, {queries * keys}));
  Tensor by_head = ops::contiguous(ctx, ops::transpose(ctx, rows, 0, 1));
  return ops::view(ctx, by_head, {1, heads_, queries, keys});
}

}  // namespace megatron
