#include "megatron/cli/bench/node_timer.h"

#include <algorithm>

#include "megatron/base/seconds_since.h"

namespace megatron {
namespace {

const char* name_of(Phase phase) {
  switch (phase) {
    case Phase::Forward:
      return "forward";
    case Phase::BackwardData:
      return "backward";
    case Phase::BackwardWeight:
      return "weight";
    case Phase::Other:
      return "";
  }
  return "";
}

}  // namespace

void NodeTimer::start_step() {
  marks_.clear();
  begin_.clear();
  begin_.emplace_back(ctx_.runtime, true);
  ctx_.tracer = this;
  start_ = Clock::now();
  begin_[0].record(ctx_.stream);
}

void NodeTimer::op(const char* name, Phase phase, const Cost& cost) {
  bool matrix = cost.flops > 50 * cost.bytes;
  Event after(ctx_.runtime, true);
  after.record(ctx_.stream);
  double host = seconds_since(start_);
  marks_.push_back({{name, phase, matrix ? cost.flops : 0}, cost, std::move(after), host});
}

void NodeTimer::end_step() {
  ctx_.tracer = nullptr;
  ctx_.stream.synchronize();
  ++steps_;
  double host_before = 0;
  const Event* before = &begin_[0];
  for (Mark& mark : marks_) {
    Row& row = rows_[mark.key];
    double seconds =
        ctx_.device.is_cuda() ? mark.after.seconds_since(*before) : mark.host_seconds - host_before;
    row.calls += 1;
    row.seconds += seconds;
    row.flops += mark.cost.flops;
    row.bytes += mark.cost.bytes;
    seconds_ += seconds;
    before = &mark.after;
    host_before = mark.host_seconds;
  }
  host_seconds_ += host_before;
}

std::string NodeTimer::table() const {
  std::vector<std::pair<Key, Row>> rows(rows_.begin(), rows_.end());
  std::sort(rows.begin(), rows.end(), [](auto& a, auto& b) { return a.second.seconds > b.second.seconds; });
  std::string text = fmt::format("{:<24} {:<9} {:>9} {:>6} {:>9} {:>9} {:>7} {:>7}\n", "node", "phase",
                                 "GFLOP", "calls", "ms", "TFLOP/s", "TB/s", "share");
  for (const auto& [key, row] : rows)
    text += fmt::format("{:<24} {:<9} {:>9.1f} {:>6} {:>9.3f} {:>9.1f} {:>7.2f} {:>6.1f}%\n", key.name,
                        name_of(key.phase), row.flops / static_cast<double>(row.calls) / 1e9,
                        row.calls / steps_, row.seconds / steps_ * 1e3, row.flops / row.seconds / 1e12,
                        row.bytes / row.seconds / 1e12, 100 * row.seconds / seconds_);
  return text + fmt::format("a step: {:.3f} ms, of which the host needed {:.3f} ms to ask for it\n",
                            seconds_ / steps_ * 1e3, host_seconds_ / steps_ * 1e3);
}

}  // namespace megatron
