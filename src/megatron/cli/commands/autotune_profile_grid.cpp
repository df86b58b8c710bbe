#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iterator>

#include "megatron/autotune/calibrations.h"
#include "megatron/base/atomic_file.h"
#include "megatron/base/error.h"
#include "megatron/base/progress.h"
#include "megatron/base/seconds_since.h"
#include "megatron/base/text_file.h"
#include "megatron/cli/bench/profile_grid.h"
#include "megatron/cli/bench/step_profile.h"
#include "megatron/cli/commands/autotune_parts.h"
#include "megatron/cli/flags.h"
#include "megatron/cli/version.h"
#include "megatron/device/gpu_info.h"
#include "megatron/device/runtime.h"

namespace megatron {
namespace {

// Profiles the trainer when its few steps are done.
class ProfileAtEnd final : public Callback {
 public:
  ProfileAtEnd(std::string name, double seconds, autotune::StepDatabase& database)
      : name_(std::move(name)), seconds_(seconds), database_(database) {}
  void on(RunEvent event, RunView& view) override {
    if (event == RunEvent::train_end && view.is_first_rank())
      database_.put(profile_steps(view, name_, seconds_));
  }

 private:
  std::string name_;
  double seconds_;
  autotune::StepDatabase& database_;
};

}  // namespace

autotune::StepDatabase autotune_step_database(const std::string& name) {
  if (name == "h200") {
    auto all = autotune::StepDatabase::parse(std::string(autotune::h200_op_times), name);
    auto more = autotune::StepDatabase::parse(std::string(autotune::h200_moe_fp8_op_times), name);
    std::move(more.steps.begin(), more.steps.end(), std::back_inserter(all.steps));
    return all;
  }
  return autotune::StepDatabase::parse(read_text_file(name), name);
}

int profile_grid_steps(Invocation& invocation, const std::string& path, double seconds,
                       const std::vector<size_t>& chosen) {
  const bool cuda = cuda_device_count() > 0;
  const std::string device = cuda ? gpu_name(0) : "CPU";
  autotune::StepDatabase database;
  if (std::filesystem::exists(path)) database = autotune::StepDatabase::parse(read_text_file(path), path);
  if (!database.device.empty() && database.device != device)
    throw ConfigError(
        fmt::format("{}: holds times of {}, not of {}; give another file", path, database.device, device));
  database.device = device;
  database.library = std::string(build_info().version);
  std::vector<GridCase> cases = profile_grid(cuda);
  if (!chosen.empty()) {
    std::vector<GridCase> some;
    for (const size_t at : chosen) {
      if (at >= cases.size())
        throw UsageError(fmt::format(
            "autotune profile-ops: --test-case-idxs: the grid has {} models (got {})", cases.size(), at));
      some.push_back(cases[at]);
    }
    cases = std::move(some);
  }
  const auto begin = std::chrono::steady_clock::now();
  Progress progress(invocation.log, "models", static_cast<int64_t>(cases.size()));
  int64_t done = 0;
  for (const GridCase& one : cases) {
    RunSpec spec;
    spec.sources = sources_of(one.train, one.run);
    spec.log = invocation.log;
    spec.out = nullptr;
    spec.data = [](const Config& config) { return RunData{.train = random_rows(config)}; };
    spec.callbacks = {std::make_shared<ProfileAtEnd>(one.name(), seconds, database)};
    if (const RunEnd end = run(spec); end.reason != RunEnd::Reason::finished)
      throw Error(fmt::format("autotune profile-ops: {}: {}", one.name(), end.text()));
    progress.update(++done, one.name());
    write_file_atomically(path, database.text());
  }
  progress.clear();
  size_t ops = 0;
  for (const autotune::MeasuredStep& step : database.steps) ops += step.ops.size();
  fmt::print(invocation.out, "{}: times of {} ops of {} models on {}, {:.0f} s\n", path, ops,
             database.steps.size(), device, seconds_since(begin));
  return 0;
}

}  // namespace megatron
