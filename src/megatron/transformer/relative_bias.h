#pragma once

#include "megatron/config/schema/model_config.h"
#include "megatron/nn/parameter.h"
#include "megatron/parallel/tensor/tensor_parallel.h"

namespace megatron {

// T5's positions: what is added to the score of a query and a key depends on their distance alone, with one
// number per head and bucket of distances. Far distances share buckets.
class RelativeBias final : public Module {
 public:
  RelativeBias(const std::string& name, const ModelConfig& config, const TensorParallel& tp);
  // [1, heads of this rank, queries, keys]; query i stands at key i.
  Tensor forward(RankContext& ctx, int64_t queries, int64_t keys);
  void visit(const ParameterVisitor& visitor) override { visitor(table_); }

 private:
  int64_t buckets_, max_distance_, heads_;
  bool bidirectional_;
  Parameter table_;  // [buckets, heads]
};

// The bucket of a key that stands `distance` after the query.
int64_t relative_bucket(int64_t distance, int64_t buckets, int64_t max_distance, bool bidirectional);

}  // namespace megatron
