#pragma once

#include <array>
#include <chrono>
#include <optional>
#include <vector>

#include "megatron/comm/process_group.h"
#include "megatron/config/config.h"

namespace megatron {

// How long the latest steps of a rank took; outlives a generation.
struct StepTimes {
  std::vector<double> seconds;  // a ring once full
  int64_t count = 0;            // steps seen
};

// How long a rank waits for the others, by what the run does: a rank that hangs in a step is named after
// three median steps (five seconds at least), not after --distributed-timeout-minutes. What setup and saves
// took is kept in ft_state.json of --save, for the next start.
class SectionTimeouts {
 public:
  enum class Section { setup, step, checkpointing, evaluation };

  // Without --enable-ft-package or --inprocess-restart it does nothing. All ranks make one; `steps` are those
  // of the generation before.
  SectionTimeouts(const Config& config, const ProcessGroup& world, StepTimes& steps);

  // What follows belongs to this section; the section before has ended. The first step behind another section
  // has that section's time-out: ranks come from it at different times.
  void begin(Section section);
  // Keeps what was learned: of setup where it loaded a checkpoint, which takes the longest. All ranks call
  // it.
  void finish(bool loaded);

  std::chrono::milliseconds timeout(Section section) const;

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kSections = 4;

  void note(double seconds);
  double median_step() const;

  bool active_, learns_;
  std::optional<double> soft_timeout_;
  int64_t warmup_;
  std::string path_;  // of ft_state.json; "": none
  double longest_;    // seconds: that of all waits
  ProcessGroup world_;
  Section section_ = Section::setup;
  bool settled_ = false;  // the section before was the same
  Clock::time_point begun_ = Clock::now();
  std::array<double, kSections> largest_{};               // seconds seen here
  std::array<std::optional<double>, kSections> learned_;  // time-outs of earlier starts, in seconds
  StepTimes& steps_;
};

}  // namespace megatron
