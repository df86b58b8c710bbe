#pragma once

#include "megatron/autotune/cost/memory_model.h"

namespace megatron::autotune {

// Seconds of one iteration on the stage that binds, by what they are spent on.
struct Breakdown {
  double gemm = 0, attention = 0, memory = 0;
  double tp = 0, cp = 0, ep = 0, pp = 0, dp = 0;  // communication that shows
  double host = 0;                                // the GPU waits for launches
  double bubble = 0, optimizer = 0, step = 0;
  double offload = 0;  // copies to the host and back that show
  double total() const {
    return gemm + attention + memory + tp + cp + ep + pp + dp + host + bubble + optimizer + step + offload;
  }
};

struct Prediction {
  double seconds = 0;      // of an iteration
  double uncertainty = 0;  // one standard deviation, as a share of it
  Breakdown breakdown;
  double tokens_per_second_per_gpu = 0;
  double tflops_per_gpu = 0;  // model FLOPs, causal attention counted half
  double mfu = 0;             // of the 16-bit peak
  bool network_binds_experts = false;
};

// One iteration in closed form: pipeline, gradients, update and what remains.
Prediction predict(const CostInputs& in, const ParallelPlan& plan);
// The same with prices that the caller keeps; they are those of the plan.
Prediction predict(const CostInputs& in, const ParallelPlan& plan, const StagePrices& prices);

// Layers of the last stage that balance it best against the others, given the costs of head and layer; 0:
// even.
int balanced_last_stage(const CostInputs& in, const ParallelPlan& plan);
int balanced_last_stage(const ModelShape& model, const ParallelPlan& plan, const StagePrices& prices);

// Seconds in which a stage hands one micro-batch's activations on and takes the gradients back.
double stage_exchange_seconds(const CostInputs& in, const ParallelPlan& plan);
// Gradients' reduction and weights' gathering of so many parameters over a group, apart from each other.
struct DataParallelSeconds {
  double reduce = 0, gather = 0;
};
DataParallelSeconds data_parallel_seconds(const CostInputs& in, const ParallelPlan& plan, double params,
                                          int ranks, int stride);
// Seconds of the optimizer's update on a rank that holds so many parameters.
double update_seconds(const CostInputs& in, const ParallelPlan& plan, const LocalParams& params);

// What takes most of the time beyond computation: "GEMM", "NIC", "NVLink", "host", "bubble", "memory
// bandwidth".
std::string_view what_binds(const CostInputs& in, const ParallelPlan& plan, const Prediction& prediction);

}  // namespace megatron::autotune
