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

void ProfilerRanges::op(const char* name, Phase phase, const Cost& cost) {
  if (next_) next_->op(name, phase, cost);
}
void ProfilerRanges::begin(const char* name) {
  begin_profiler_range(name);
  if (next_) next_->begin(name);
}
void ProfilerRanges::end() {
  end_profiler_range();
  if (next_) next_->end();
}

Profiling::Profiling(RankContext& ctx, const ProfilingConfig& config)
    : ctx_(ctx),
      config_(config),
      before_(ctx.tracer),
      ranges_(before_),
      chosen_(is_profiled(config, ctx.rank)) {
  if (config_.nvtx_ranges) ctx_.tracer = &ranges_;
}

Profiling::~Profiling() {
  if (running_) stop_profiler();
  if (ctx_.tracer == &ranges_) ctx_.tracer = before_;
}

void Profiling::before_step(int64_t steps_done) {
  if (!chosen_) return;
  const bool wanted = steps_done >= config_.profile_step_start && steps_done < config_.profile_step_end;
  if (wanted == running_) return;
  running_ = wanted;
  wanted ? start_profiler() : stop_profiler();
  ctx_.tracer = wanted || config_.nvtx_ranges ? &ranges_ : before_;
}

}  // namespace megatron
