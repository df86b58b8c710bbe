#pragma once

#include "megatron/autograd/rank_context.h"
#include "megatron/config/config.h"

namespace megatron {

// Tells a profiler of the ranges that a rank names, and whoever listened before.
class ProfilerRanges final : public Tracer {
 public:
  explicit ProfilerRanges(Tracer* next) : next_(next) {}
  void op(const char* name, Phase phase, const Cost& cost) override;
  void begin(const char* name) override;
  void end() override;

 private:
  Tracer* next_;
};

// What a rank tells a profiler: with nvtx_ranges, its ranges in every step; with profile, the ranges of the
// profiled steps, and where the profiler should begin and end.
class Profiling {
 public:
  Profiling(RankContext& ctx, const ProfilingConfig& config);
  ~Profiling();
  Profiling(const Profiling&) = delete;
  Profiling& operator=(const Profiling&) = delete;

  void before_step(int64_t steps_done);

 private:
  RankContext& ctx_;
  const ProfilingConfig& config_;
  Tracer* before_;  // listens where the profiler does not
  ProfilerRanges ranges_;
  bool chosen_, running_ = false;
};

}  // namespace megatron
