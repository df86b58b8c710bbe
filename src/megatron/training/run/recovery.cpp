#include "megatron/training/run/recovery.h"

#include "megatron/config/rules/nonuniform_refusals.h"
#include "megatron/training/run/agreement.h"

namespace megatron {
namespace {

constexpr const char* kMemory = "memory";

const char* beyond_memory(int64_t iteration) {
  return iteration > 0 ? "a checkpoint" : "the weights that the run began with";
}

// A rank's place among those of its process; ranks may idle beside the ones of `world`.
size_t rank_here(const ProcessGroup& world, const RestartState& restart) {
  return static_cast<size_t>(world.world_ranks()[static_cast<size_t>(world.rank())] - restart.first_rank);
}

}  // namespace

Recovery::Recovery(RankContext& ctx, const ProcessGroup& world, const TrainingRun& run,
                   const Announcer& announcer)
    : ctx_(ctx),
      world_(world),
      run_(run),
      announcer_(announcer),
      kept_(run.restart ? run.restart->ranks[rank_here(world, *run.restart)] : own_),
      memory_(run.restart ? &kept_.snapshot : nullptr) {}

// What is kept in memory for the next generation holds on to no weight of this one.
Recovery::~Recovery() {
  try {
    before_change({});
  } catch (...) {  // of a device that has failed
  }
}

bool Recovery::from_memory() const { return restored_from_ == kMemory; }

TrainState Recovery::load(RunCheckpoints& checkpoints, const std::string& layout) {
  set_up_ = std::chrono::steady_clock::now();
  if (!restarted()) {
    const TrainState state = checkpoints.load();
    first_ = state.iteration;
    tell_about_snapshots();
    return state;
  }
  const TrainState state = load_again(checkpoints);
  first_ = state.iteration;
  // By any rank: this one may have been in reserve.
  const std::vector<double> all = all_reduce_max(
      ctx_, world_, {static_cast<double>(kept_.iteration), static_cast<double>(kept_.gone_back_to)});
  const int64_t again = std::max<int64_t>(0, static_cast<int64_t>(all[0]) - first_);
  // The generation that went back may have ended before its first step, with that state in memory alone.
  if (from_memory() && static_cast<int64_t>(all[1]) == first_) restored_from_ = beyond_memory(first_);
  kept_.iteration = first_;
  restored_ = std::chrono::steady_clock::now();
  // Told before the first step: who tells it may die in that step, and the others go on behind it.
  const RestartState& restart = *run_.restart;
  announcer_.tell(fmt::format("restart {}: {}; {} ({}), from iteration {} in {}, {} computed again",
                              restart.number, restart.fault, restart.change, layout, first_, restored_from_,
                              again));
  return state;
}

TrainState Recovery::load_again(RunCheckpoints& checkpoints) {
  if (std::optional<TrainState> kept = checkpoints.restore(*memory_)) {
    memory_->forget_all_but(kept->iteration);
    restored_from_ = kMemory;
    return *kept;
  }
  memory_->forget();
  TrainState loaded = checkpoints.load();
  restored_from_ = beyond_memory(loaded.iteration);
  kept_.gone_back_to = loaded.iteration;
  return loaded;
}

void Recovery::tell_about_snapshots() const {
  if (!keeps_snapshots()) return;
  announcer_.tell(
      fmt::format("after a fault the run goes on from memory, copied every {} steps, where replicas hold "
                  "everything; else from the newest checkpoint",
                  run_.config.inprocess_restart.snapshot_interval));
  const int64_t tp = run_.config.parallel.tensor_model_parallel_size;
  if (tp == 1 || may_lose_ranks(run_.config)) return;
  const auto refused = nonuniform_refusals(run_.config);
  announcer_.tell(fmt::format("a replica that loses one of its {} tensor-parallel ranks is dropped{}", tp,
                              refused.empty() ? ""
                                              : fmt::format("; for it to go on with fewer, {} ({})",
                                                            refused[0].fix, refused[0].key)));
}

void Recovery::keep(RunCheckpoints& checkpoints, const TrainState& state) {
  const int64_t every = run_.config.inprocess_restart.snapshot_interval;
  if (keeps_snapshots() && (state.iteration % every == 0 || state.iteration == first_))
    checkpoints.keep(*memory_, state);
  if (state.iteration == first_) kept_at_ = std::chrono::steady_clock::now();
}

void Recovery::finish_step(int64_t iteration) {
  kept_.iteration = iteration;
  kept_.gone_back_to = -1;
  kept_.reached = std::max(kept_.reached, iteration);
}

void Recovery::tell_times(int64_t iteration) const {
  if (!restarted() || iteration != first_ + 1) return;
  announcer_.tell(fmt::format("restart {}: {}", run_.restart->number,
                              run_.restart->tell_times(set_up_, restored_, kept_at_)));
}

void Recovery::before_change(std::optional<size_t> group) {
  if (memory_) memory_->before_change(ctx_, group);
}

}  // namespace megatron
