#pragma once

#include <span>
#include <string>
#include <vector>

#include "megatron/config/schema/elastic_config.h"
#include "megatron/config/schema/model_config.h"
#include "megatron/models/model_chunk.h"
#include "megatron/parallel/parallel_context.h"

namespace megatron {

// Whether steps have a budget loss of their sub-networks.
bool reports_budget_loss(const ElasticConfig& config);

// What auxiliary losses were in a step: means over micro-batches and over the layers that have them. Routers'
// balancing losses and z-losses are without their coefficients, and with --moe-per-layer-logging also told of
// each layer; an indexer's loss has its coefficient, as the budget loss of sub-networks has, where there is
// one.
class AuxLossLog {
 public:
  explicit AuxLossLog(const ModelConfig& model, bool budgets = false);

  // "load_balancing_loss", …, "moe/load_balancing_loss_layer_1" (layers count from 1): the same on every
  // rank.
  const std::vector<std::string>& names() const { return names_; }
  // One fp64 number for each name, the same on every rank; undefined where there are no names. `batches`: of
  // all replicas.
  Tensor means(RankContext& ctx, std::span<ModelChunk* const> chunks, const ParallelContext& parallel,
               int64_t batches);

 private:
  struct Kind {
    std::string kind;  // as its layer names it
    double coefficient;
    std::vector<int64_t> layers;  // that have it
    int64_t first = 0;            // of its layers, among the layers of all kinds
  };
  void add(std::string kind, double coefficient, const std::vector<int64_t>& layers);

  std::vector<Kind> kinds_;
  int64_t places_ = 0;  // layers of all kinds together
  bool per_layer_;
  std::vector<std::string> names_;
};

}  // namespace megatron
