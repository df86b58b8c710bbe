#pragma once

#include "megatron/autograd/rank_context.h"
#include "megatron/config/config.h"

namespace megatron {

// Tells a profiler of the ranges that a rank names.
class ProfilerRanges final : public Tracer {
 public:
  void op(const char*, Phase, const Cost&) override {}
  void begin(const char* name) override;
  void end() override;
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
  ProfilerRanges ranges_;
  bool chosen_, running_ = false;
};

}  // namespace megatron
