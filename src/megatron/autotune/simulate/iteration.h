#pragma once

#include <string>
#include <vector>

#include "megatron/autotune/cost/cost_model.h"

namespace megatron::autotune {

enum class SpanKind : uint8_t { forward, backward, weight, message, gather, reduce, update };
std::string_view span_kind_name(SpanKind kind);

// What a stage does for a while; computation, messages and data-parallel collectives run beside each other.
struct SimulatedSpan {
  SpanKind kind = SpanKind::forward;
  int chunk = 0, microbatch = 0;
  double begin = 0, end = 0;
};
struct SimulatedMessage {
  int from = 0, to = 0;  // stages
  bool gradient = false;
  double sent = 0, received = 0;
};

// One iteration as events. Every rank of a stage does the same at the same time, so one stands for all of
// them: tp x cp x dp ranks a stage.
struct SimulatedIteration {
  double seconds = 0;
  double bubble = 0;  // share of the pipeline's time in which stages do not compute
  double data_parallel = 0, update = 0, step = 0;  // after the last backward pass: what shows of each
  int ranks_per_stage = 1;
  int microbatches = 1;
  std::vector<std::vector<SimulatedSpan>> stages;
  std::vector<SimulatedMessage> messages;
};

struct SimulationOptions {
  std::vector<int> chunk_layers;  // by model stage; empty: as layer_split deals them
  int most_microbatches = 0;      // above it the steady state is extrapolated; 0: all are simulated
  int slow_stage = -1;            // a stage whose GPU is slower, and how much
  double slowdown = 1;
};

// Runs the schedule of the plan with the prices of its stages: passes in order, messages between stages and
// data-parallel collectives on the links, which share them when they meet, then the update.
SimulatedIteration simulate_iteration(const CostInputs& in, const ParallelPlan& plan,
                                      const SimulationOptions& options = {});

// Layers of each chunk in the order of the model: stage 0 chunk 0, stage 1 chunk 0, ...
std::vector<int> default_chunk_layers(const ModelShape& model, const ParallelPlan& plan);

}  // namespace megatron::autotune
