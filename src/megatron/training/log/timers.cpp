#include "megatron/training/log/timers.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace megatron {
namespace {

struct TimerName {
  std::string_view timer;
  int64_t level;
  std::string_view range;  // that it runs in
};

// Passes come before what they are part of, as Megatron-LM lists them.
constexpr TimerName kTimerNames[] = {
    {"model-and-optimizer-setup", 0, "setup"},
    {"train/valid/test-data-iterators-setup", 0, "data setup"},
    {"load-checkpoint", 0, "load checkpoint"},
    {"save-checkpoint", 0, "save checkpoint"},
    {"eval-time", 0, "evaluate"},
    {"forward-backward", 1, "gradients"},
    {"forward-compute", 2, "forward"},
    {"backward-compute", 2, "backward"},
    {"backward-compute", 2, "weight gradients"},
    {"batch-generator", 2, "read batches"},
    {"forward-recv", 2, "forward receive"},
    {"forward-send", 2, "forward send"},
    {"backward-recv", 2, "backward receive"},
    {"backward-send", 2, "backward send"},
    {"all-grads-sync", 1, "finish gradients"},
    {"params-all-gather", 1, "publish parameters"},
    {"optimizer-clip-main-grad", 1, "gradient norm"},
    {"optimizer-count-zeros", 1, "count zeros"},
    {"optimizer-inner-step", 1, "optimizer"},
    {"optimizer", 1, "update"},
};

// While a CUDA graph is captured, nothing runs that could be timed.
constexpr std::string_view kCaptureRange = "capture";

int row_of(std::string_view range, int64_t level) {
  for (size_t row = 0; row < std::size(kTimerNames); ++row)
    if (kTimerNames[row].range == range && kTimerNames[row].level <= level) return static_cast<int>(row);
  return -1;
}

}  // namespace

Timers::Timers(RankContext& ctx, int64_t level)
    : ctx_(ctx), next_(ctx.tracer), level_(level), timers_(std::size(kTimerNames)) {
  ctx_.tracer = this;
}

Timers::~Timers() {
  if (ctx_.tracer == this) ctx_.tracer = next_;
}

void Timers::op(const char* name, Phase phase, const Cost& cost) {
  if (next_) next_->op(name, phase, cost);
}

size_t Timers::mark() {
  if (!ctx_.device.is_cuda()) return 0;
  if (events_used_ == events_.size()) events_.emplace_back(ctx_.runtime, true);
  events_[events_used_].record(ctx_.stream);
  return events_used_++;
}

void Timers::begin(const char* name) {
  if (next_) next_->begin(name);
  if (capture_depth_ > 0 || name == kCaptureRange) ++capture_depth_;
  const int row = capture_depth_ > 0 ? -1 : row_of(name, level_);
  open_.push_back(row);
  if (row < 0) return;
  Timer& timer = timers_[static_cast<size_t>(row)];
  if (timer.depth++ > 0) return;
  timer.start_event = mark();
  timer.start = Clock::now();
}

void Timers::end() {
  if (next_) next_->end();
  if (open_.empty()) return;  // of a range that began before anybody listened
  if (capture_depth_ > 0) --capture_depth_;
  const int row = open_.back();
  open_.pop_back();
  if (row < 0) return;
  Timer& timer = timers_[static_cast<size_t>(row)];
  if (--timer.depth > 0) return;
  if (ctx_.device.is_cuda())
    intervals_.push_back({static_cast<size_t>(row), timer.start_event, mark()});
  else
    timer.seconds += std::chrono::duration<double>(Clock::now() - timer.start).count();
}

void Timers::finish_step() {
  if (intervals_.empty()) return;
  ctx_.stream.synchronize();
  for (const Interval& interval : intervals_)
    timers_[interval.timer].seconds +=
        events_[interval.end_event].seconds_since(events_[interval.start_event]);
  intervals_.clear();
  events_used_ = 0;
}

std::vector<Timers::Reading> Timers::readings() const {
  std::vector<Reading> result;
  for (size_t row = 0; row < timers_.size(); ++row) {
    const TimerName& name = kTimerNames[row];
    if (name.level > level_) continue;
    if (!result.empty() && result.back().name == name.timer)
      result.back().seconds += timers_[row].seconds;
    else
      result.push_back({std::string(name.timer), name.level, timers_[row].seconds});
  }
  return result;
}

void Timers::reset() {
  for (Timer& timer : timers_) timer.seconds = 0;
}

TimerTable gather_timers(RankContext& ctx, const ProcessGroup& world, std::vector<Timers::Reading> readings,
                         int64_t iterations) {
  std::vector<double> own;
  for (Timers::Reading& reading : readings)
    own.push_back(std::exchange(reading.seconds, 0) /
                  static_cast<double>(reading.level > 0 ? iterations : 1));
  const auto count = static_cast<int64_t>(own.size());
  const Tensor mine = ctx.from_vector<double>(own, {count}),
               all = ctx.empty({count * world.size()}, DType::F64);
  world.all_gather(mine, all).wait();
  const auto values = ctx.to_vector<double>(all);
  TimerTable table{.timers = std::move(readings), .seconds = {}};
  for (auto at = values.begin(); at != values.end(); at += count) table.seconds.emplace_back(at, at + count);
  return table;
}

std::string timers_block(const TimerTable& table, int64_t level, TimingLogOption option) {
  std::string lines;
  for (size_t i = 0; i < table.timers.size(); ++i) {
    if (table.timers[i].level > level) continue;
    const std::string& name = table.timers[i].name;
    std::vector<std::pair<size_t, double>> ran;  // ranks, and what they took
    for (size_t rank = 0; rank < table.seconds.size(); ++rank)
      if (table.seconds[rank][i] > 0) ran.emplace_back(rank, 1e3 * table.seconds[rank][i]);
    if (ran.empty()) continue;
    if (option == TimingLogOption::all) {
      lines += fmt::format("\n  {}:", name);
      for (const auto& [rank, time] : ran) lines += fmt::format("\n     rank {:2d}: {:.2f}", rank, time);
      continue;
    }
    const auto [least, most] =
        std::minmax_element(ran.begin(), ran.end(), [](auto& a, auto& b) { return a.second < b.second; });
    lines += fmt::format("\n    {:.<48}: ", name + " ");
    lines += option == TimingLogOption::max ? fmt::format("{:.2f}", most->second)
                                            : fmt::format("({:.2f}, {:.2f})", least->second, most->second);
  }
  if (lines.empty()) return "";
  constexpr std::string_view titles[] = {
      "max time across ranks (ms):", "(min, max) time across ranks (ms):", "times across ranks (ms):"};
  return std::string(titles[static_cast<size_t>(option)]) + lines;
}

}  // namespace megatron
