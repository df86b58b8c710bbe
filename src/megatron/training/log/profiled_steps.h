#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "megatron/base/log.h"
#include "megatron/training/run/callback.h"

// What is recorded of the steps from --profile-step-start up to --profile-step-end, on every rank.
namespace megatron {

// Listens to a rank's ops and ranges, and tells them to whoever listened before.
class StepRecorder : public Tracer {
 public:
  explicit StepRecorder(RankContext& ctx) : ctx_(ctx) {}
  ~StepRecorder() override { stop(); }
  void start();
  void stop();

  void op(const char* name, Phase phase, const Cost& cost) override {
    if (next_) next_->op(name, phase, cost);
  }
  void begin(const char* name) override {
    if (next_) next_->begin(name);
  }
  void end() override {
    if (next_) next_->end();
  }

 protected:
  virtual void started() {}
  virtual void stopped() {}
  RankContext& ctx_;

 private:
  Tracer* next_ = nullptr;
  bool listens_ = false;
};

// Whether --profile-ranks names the rank, or nobody.
bool is_recorded(const ProfilingConfig& config, int64_t rank);
// A file beside the run's TensorBoard files or checkpoints.
std::string path_beside_logs(const Config& config, const std::string& name);
// Writes what a run can do without, called `what`. False: a warning tells why not.
bool write_profile(const Log& log, const char* what, const std::string& path, const std::string& text);

// A callback that has each rank record these steps, and writes what was recorded behind the last of them.
template <class Recorder>
class ProfiledSteps : public Callback {
 public:
  void on(RunEvent event, RunView& view) override {
    const ProfilingConfig& config = view.config.profiling;
    const int64_t done = view.state.iteration;
    if (event == RunEvent::step_start && done >= config.profile_step_start &&
        done < config.profile_step_end && records(view))
      recorder(view).start();
    if (event == RunEvent::step_end) {
      recorder(view).stop();
      if (done == config.profile_step_end) write(view);
    }
    // A run that ended within these steps.
    if (event == RunEvent::train_end && done > config.profile_step_start && done < config.profile_step_end)
      write(view);
  }

 protected:
  virtual bool records(const RunView&) const { return true; }
  virtual void write(RunView& view) = 0;  // all ranks call it

  // Ranks of a process share the callback.
  Recorder& recorder(RunView& view) {
    const std::lock_guard lock(mutex_);
    std::unique_ptr<Recorder>& own = recorders_[view.ctx.rank];
    if (!own) own = std::make_unique<Recorder>(view.ctx);
    return *own;
  }

 private:
  std::mutex mutex_;
  std::map<int64_t, std::unique_ptr<Recorder>> recorders_;  // by rank
};

}  // namespace megatron
