#pragma once

#include <array>

#include "megatron/config/resolve/resolve.h"
#include "megatron/kernels/limits/launch_check.h"
#include "megatron/models/gpt.h"
#include "megatron/parallel/pipeline/simulator.h"
#include "megatron/parallel/planned_group.h"
#include "megatron/training/plan/device_speed.h"
#include "megatron/training/step/rank_trainer.h"

namespace megatron {

// What a run will need, known before anything is launched: one step of the real trainer on the meta device,
// once for each rank of a pipeline.
struct RankPlan {
  int rank = 0, pipeline_rank = 0;
  std::vector<ModelSlice> chunks;
  int64_t parameters = 0;  // that this rank holds
  MemoryStatistics memory;
  std::array<double, 3> flops = {};  // of forward, backward (data) and weight gradients, per step
  double seconds = 0;                // of all ops, communication apart
  TrafficLog traffic;

  double bytes() const { return static_cast<double>(memory.total.peak); }
};

struct RunPlan {
  ParallelSizes sizes;
  PipelineShape pipeline;
  Simulation simulation;  // in units of time: forward, backward and weight gradients of a chunk are 1 each
  int64_t parameters = 0;
  double flops_per_step = 0;  // of the model, all ranks together
  int64_t tokens_per_step = 0;
  std::vector<RankPlan> ranks;
  std::vector<Refusal> refusals;  // what the kernels of the GPUs that were given would refuse

  const RankPlan& largest() const;   // by memory
  double seconds() const;            // of all ranks together
  std::string memory_table() const;  // of the largest rank
};

// Every launch is checked for each of `gpus`.
RunPlan plan_run(const Config& config, const ParallelSizes& sizes, DType dtype, const DeviceSpeed& speed = {},
                 const TrainerOptions& options = {}, std::span<const GpuFacts> gpus = {});
// The same for the GPUs and ranks of what was resolved; where these, or sizes of batches, are not known, for
// the fewest.
RunPlan plan_run(const Resolved& resolved);
// The same for its memory alone, at once for any batch: of no more micro-batches than it takes until memory
// no longer grows.
RunPlan plan_memory(Config config, const ParallelSizes& sizes, DType dtype,
                    const TrainerOptions& options = {}, std::span<const GpuFacts> gpus = {});
// A step of one rank on shapes alone, told to `tracer` op by op; the memory that it needs.
MemoryStatistics trace_step(const Config& config, const ParallelSizes& sizes, int rank, DType dtype,
                            Tracer& tracer);
// What the kernels of these GPUs would refuse of a short row that goes through the model forward.
std::vector<Refusal> forward_refusals(Config config, const ParallelSizes& sizes, DType dtype,
                                      std::span<const GpuFacts> gpus);

// The settings that help where `bytes` are not enough, as in "a, or b".
std::string what_saves_memory(const Config& config, const RunPlan& plan, double bytes);
// Throws a ConfigError that names them, where a rank needs more than the `bytes` that it has.
void check_fits(const Config& config, const RunPlan& plan, double bytes);

}  // namespace megatron
