#pragma once

#include "megatron/autotune/cost/calibration.h"
#include "megatron/autotune/cost/model_shape.h"
#include "megatron/autotune/cost/parallel_plan.h"
#include "megatron/autotune/cost/stack.h"
#include "megatron/autotune/machine/cluster.h"

namespace megatron::autotune {

class OpPricer;

// Seconds of one pass by what they are spent on. Communication is what computation does not hide.
struct PassCost {
  double gemm = 0, attention = 0, memory = 0, tp = 0, cp = 0, ep = 0;
  double host = 0;    // that the CPU needs to launch it
  double weight = 0;  // of gemm: weight gradients, which a schedule may put off

  double compute() const { return gemm + attention + memory; }
  double gpu() const { return compute() + tp + cp + ep; }
  PassCost& operator+=(const PassCost& other);
  friend PassCost operator*(double factor, PassCost pass);
};

struct PassPair {
  PassCost forward, backward;
};

// All that prices are made from; the parts outlive it.
struct CostInputs {
  const ModelShape& model;
  const Cluster& cluster;
  const Stack& stack;
  const CostConstants& constants;
  const Calibration* measured = nullptr;  // layers that were measured, where there are any
  const OpPricer* ops = nullptr;  // times of GEMMs and attention that were measured; else shaped models
};

// What decides the shapes of a layer's kernels.
LayerShape layer_shape(const ModelShape& model, const ParallelPlan& plan);

// One micro-batch through an average layer; backward holds what is recomputed too.
PassPair layer_cost(const CostInputs& in, const ParallelPlan& plan);
// Embedding, and final norm, logits and loss.
PassPair embedding_cost(const CostInputs& in, const ParallelPlan& plan);
PassPair head_cost(const CostInputs& in, const ParallelPlan& plan);

// Prices that plans share which differ in stages, chunks, replicas and their sharding alone.
struct StagePrices {
  PassPair layer, embedding, head;
};
StagePrices stage_prices(const CostInputs& in, const ParallelPlan& plan);

// One kind of layer of a model whose layers differ.
PassPair layer_cost_of(const CostInputs& in, const ParallelPlan& plan, LayerType kind);

// Seconds of an all-gather or reduce-scatter whose whole buffer has `bytes`; an all-reduce takes two.
double collective_seconds(const CostInputs& in, double bytes, int ranks, int stride);
// Seconds in which a rank exchanges `bytes` with the others of an expert group; whether the network binds.
struct ExchangeSeconds {
  double seconds = 0;
  bool network = false;
};
ExchangeSeconds exchange_seconds(const CostInputs& in, const ParallelPlan& plan);

// What remains visible of communication that runs beside `window` seconds of computation.
double exposed_seconds(const CostConstants& constants, double communication, double window);

}  // namespace megatron::autotune
