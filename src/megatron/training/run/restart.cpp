#include "megatron/training/run/restart.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace megatron {
namespace {

// Faults without progress, until the run gives up: errors of this process, and faults of others, of which
// several may come at once.
constexpr int kOwnFaults = 3, kFaults = 10;

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// Whether faults keep coming back at one place.
class Recurrence {
 public:
  // Counts a fault, of this process's `own` or of another; true: they came too often.
  bool count(int64_t iteration, bool own) {
    if (iteration != std::exchange(iteration_, iteration)) own_ = all_ = 0;
    own_ += own;
    return ++all_ >= kFaults || own_ >= kOwnFaults;
  }

 private:
  int64_t iteration_ = -2;
  int own_ = 0, all_ = 0;
};

int64_t progress_of(const RestartState& state) {
  int64_t newest = -1;
  for (const RankMemory& rank : state.ranks) newest = std::max(newest, rank.reached);
  return newest;
}

std::string tell_change(const Generation& before, const Generation& after) {
  const auto among = [](const std::vector<int>& list) {
    return [&list](int process) { return std::find(list.begin(), list.end(), process) != list.end(); };
  };
  const auto stayed = std::ranges::count_if(after.processes, among(before.processes));
  std::string text = stayed == std::ssize(before.processes)
                         ? fmt::format("all {} processes go on", stayed)
                         : fmt::format("{} of {} processes go on", stayed, before.processes.size());
  const auto joined = std::ranges::count_if(after.processes, among(before.reserve));
  if (joined > 0) text += fmt::format(", {} of the reserve join{}", joined, joined == 1 ? "s" : "");
  if (const auto back = std::ssize(after.processes) - stayed - joined; back > 0)
    text += fmt::format(", {} {} back", back, back == 1 ? "is" : "are");
  if (!after.reserve.empty()) text += fmt::format(", {} in reserve", after.reserve.size());
  return text;
}

}  // namespace

std::string RestartState::tell_times(Moment set_up, Moment restored, Moment kept) const {
  const Moment now = std::chrono::steady_clock::now();
  const auto seconds = [](Moment from, Moment to) {
    return std::chrono::duration<double>(to - from).count();
  };
  return fmt::format(
      "{:.2f} s from the fault to the end of the next step (stop {:.2f}, meet {:.2f}, set up {:.2f}, "
      "restore {:.2f}, keep {:.2f}, step {:.2f})",
      seconds(noticed, now), seconds(noticed, stopped), seconds(stopped, met), seconds(met, set_up),
      seconds(set_up, restored), seconds(restored, kept), seconds(kept, now));
}

void run_with_restarts(Config& config, const LaunchPlace& place, const Log& log, const RestartPolicy& policy,
                       RestartState& state, const RankRun& fn) {
  const InProcessRestartConfig settings = config.inprocess_restart;
  if (place.rejoins && !settings.enabled)
    throw ConfigError("MEGATRON_REJOIN: a run takes processes in with --inprocess-restart alone; add it");
  const Config given = config;
  std::vector<int> everyone(static_cast<size_t>(place.processes));
  std::iota(everyone.begin(), everyone.end(), 0);
  const auto layout_of = [&](const std::vector<int>& left, int64_t min_tp) {
    return policy.layout ? policy.layout(given, place.processes, left)
                         : restart_layout(given, place.processes, left, min_tp);
  };
  LaunchOptions options = launch_options(config, place);
  RestartLayout layout{.slots = config.run.ranks * place.processes};
  layout.processes = everyone;
  RendezvousOptions meeting{
      .grace = std::chrono::milliseconds(static_cast<int64_t>(settings.barrier_timeout * 1e3))};
  if (settings.enabled) {
    layout = layout_of(everyone, 1);  // what was asked for has been checked
    options.to_gather = state.min_tp;
    options.training = [&](const std::vector<int>& /*all*/) { return layout.processes; };
    meeting.training = [&](const std::vector<int>& left) {
      layout = layout_of(left, state.min_tp);
      return layout.processes;
    };
  }
  Launch launch(options);
  // Machines may differ in memory, but all processes have to come to the same layout.
  for (const int64_t needed : launch.gathered()) state.min_tp = std::max(state.min_tp, needed);
  const auto too_many = [&] {
    return settings.max_iterations > 0 && state.number >= settings.max_iterations;
  };
  state.has_newcomer = [&] { return settings.enabled && !too_many() && launch.has_newcomer(); };
  Recurrence recurrence;
  std::vector<KeptDevice> devices(settings.enabled ? state.ranks.size() : 0);
  while (true) {
    state.first_rank = launch.generation().first_rank;
    if (settings.enabled) layout.apply(config);
    state.sizes = layout.sizes(config);
    if (launch.generation().trains()) try {
        return run_generation(launch, config, place, log, fn, state.noticed, devices);
      } catch (const ConfigError&) {
        throw;
      } catch (const std::exception& error) {
        const bool own = dynamic_cast<const PeerLost*>(&error) == nullptr;
        if (!settings.enabled || too_many() || recurrence.count(progress_of(state), own)) throw;
        state.fault = first_line(error.what());
      }
    else {
      for (RankMemory& rank : state.ranks) {  // the others go on without it
        rank.snapshot.forget();
        rank.iteration = rank.gone_back_to = -1;
      }
      for (const KeptDevice& device : devices)
        if (device.allocator) device.allocator->trim();
      if (!launch.wait_in_reserve()) return;
      state.fault = "another process failed";
      state.noticed = std::chrono::steady_clock::now();
    }
    const Generation before = launch.generation();
    state.stopped = std::chrono::steady_clock::now();
    launch.rendezvous(meeting);
    state.met = std::chrono::steady_clock::now();
    state.number = static_cast<int>(launch.generation().number);
    state.change = tell_change(before, launch.generation());
    if (!layout.note.empty()) state.change += "; " + layout.note;
    if (!launch.generation().trains())
      log.info("restart {}: this process waits in reserve ({})", state.number, state.change);
  }
}

}  // namespace megatron
