#include "megatron/training/log/profiling.h"

#include <algorithm>

#include "megatron/device/profiler.h"

namespace megatron {
namespace {

bool is_profiled(const ProfilingConfig& config, int64_t rank) {
  const std::vector<int64_t>& ranks = config.profile_ranks;
  if (ranks.empty()) return config.profile && rank == 0;
  return config.profile && std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

}  // namespace

void ProfilerRanges::begin(const char* name) { begin_profiler_range(name); }
void ProfilerRanges::end() { end_profiler_range(); }

Profiling::Profiling(RankContext& ctx, const ProfilingConfig& config)
    : ctx_(ctx), config_(config), chosen_(is_profiled(config, ctx.rank)) {
  if (config_.nvtx_ranges) ctx_.tracer = &ranges_;
}

Profiling::~Profiling() {
  if (running_) stop_profiler();
  if (ctx_.tracer == &ranges_) ctx_.tracer = nullptr;
}

void Profiling::before_step(int64_t steps_done) {
  if (!chosen_) return;
  const bool wanted = steps_done >= config_.profile_step_start && steps_done < config_.profile_step_end;
  if (wanted == running_) return;
  running_ = wanted;
  wanted ? start_profiler() : stop_profiler();
  ctx_.tracer = wanted || config_.nvtx_ranges ? &ranges_ : nullptr;
}

}  // namespace megatron
