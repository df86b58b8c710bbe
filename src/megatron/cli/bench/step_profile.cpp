#include "megatron/cli/bench/step_profile.h"

#include <algorithm>

#include "megatron/base/median.h"
#include "megatron/base/seconds_since.h"
#include "megatron/cli/bench/bench_cases.h"
#include "megatron/models/parallel_setup.h"
#include "megatron/training/plan/plan.h"
#include "megatron/training/setup/run_settings.h"

namespace megatron {

Event& OpTimer::event(size_t at) {
  while (events_.size() <= at) events_.emplace_back(ctx_.runtime, true);
  return events_[at];
}

void OpTimer::start_step() {
  marks_.clear();
  ctx_.stream.synchronize();
  ctx_.tracer = this;
  start_ = Clock::now();
  event(0).record(ctx_.stream);
}

void OpTimer::op(const OpKey& key, const Cost& cost) {
  const double host = std::chrono::duration<double, std::micro>(Clock::now() - start_).count();
  if (ctx_.device.is_cuda()) event(marks_.size() + 1).record(ctx_.stream);
  marks_.push_back({key, cost, host});
}

void OpTimer::end_step() {
  ctx_.tracer = nullptr;
  ctx_.stream.synchronize();
  const bool cuda = ctx_.device.is_cuda();
  double before = 0;
  for (size_t i = 0; i < marks_.size(); ++i) {
    const Mark& mark = marks_[i];
    const double end = cuda ? 1e6 * events_[i + 1].seconds_since(events_[0]) : mark.host;
    const autotune::StepOp op = autotune::step_op(to_string(mark.key), mark.cost.flops, mark.cost.bytes);
    const auto [at, fresh] = times_.try_emplace({op.family, op.sizes}, Times{op, {}});
    if (fresh) at->second.op.count = 0;
    ++at->second.op.count;
    // The device was still busy with the op before when this one had been launched.
    if (!cuda || mark.host <= before) at->second.us.push_back(end - before);
    before = end;
  }
  host_us = marks_.empty() ? 0 : marks_.back().host;
  ++steps_;
}

std::vector<autotune::StepOp> OpTimer::ops() const {
  std::vector<autotune::StepOp> result;
  for (const auto& [key, times] : times_) {
    if (times.us.empty()) continue;
    result.push_back(times.op);
    result.back().count /= steps_;
    result.back().us = median(times.us);
  }
  return result;
}

autotune::MeasuredStep profile_steps(RunView& view, const std::string& name, double seconds) {
  using Clock = std::chrono::steady_clock;
  const Config& config = view.config;
  const auto source = random_rows(config);
  const Shares shares = Shares::even(config.train.global_batch_size, config.train.micro_batch_size, 1);
  const std::vector<Batch> batches = source->step({0, 0, shares.of_replica[0]});
  // At least two steps of each kind, and then until the time is over.
  const auto repeat = [&](double share, auto&& step) {
    const auto begin = Clock::now();
    const auto passed = [&] { return seconds_since(begin); };
    for (int done = 0; done < 2 || (passed() < share * seconds && done < 200); ++done) step();
  };
  std::vector<double> alone, host;
  repeat(0.6, [&] {
    const auto begin = Clock::now();
    view.trainer.step(view.ctx, batches, 1e-3);
    alone.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
  });
  OpTimer timer(view.ctx);
  repeat(0.4, [&] {
    timer.start_step();
    view.trainer.step(view.ctx, batches, 1e-3);
    timer.end_step();
    host.push_back(timer.host_us);
  });
  autotune::MeasuredStep step{name, median(alone), 0, median(host), timer.ops()};
  for (const autotune::StepOp& op : step.ops) step.op_us += op.count * op.us;
  return step;
}

namespace {

class OpList final : public OpListener {
 public:
  explicit OpList(bool fuses) : ops(fuses) {}
  using OpListener::op;
  void op(const OpKey& key, const Cost& cost) override { ops.add(to_string(key), cost.flops, cost.bytes); }
  autotune::StepOps ops;
};

}  // namespace

PlannedStep planned_step(const Config& config, bool cuda) {
  OpList list(cuda);
  const MemoryStatistics memory =
      trace_step(config, parallel_sizes(config, config.run.ranks), 0, model_dtype(config), list);
  return {list.ops.counted(), memory};
}

}  // namespace megatron
