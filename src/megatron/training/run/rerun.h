#pragma once

#include <functional>
#include <optional>
#include <string>

#include "megatron/base/json.h"
#include "megatron/comm/process_group.h"
#include "megatron/config/config.h"

namespace megatron {

// What a step computed that can be looked at: the same on every rank.
struct StepResult {
  double loss = 0, grad_norm = 0;
  bool operator==(const StepResult& other) const;  // NaN equals NaN
};

// Which gradients are looked at.
struct GradientChecks {
  bool finite = true;
  bool large = false;  // their norm far above all before
};

// Looks at the result of every step. One that cannot be right (not finite) or is hardly right (a loss or norm
// far above all before) is computed again in place: where the second result differs, something went wrong in
// passing; where it does not, the run is saved and left with exit code 16, so that another machine computes
// it once more and tells a broken device (exit code 17) from a result that is as it should be (17 too).
class RerunMachine {
 public:
  enum class Verdict { go_on, save_and_leave, failed };  // exit codes 16 and 17 for the latter two

  // `layout` names how ranks divide the model: sums of another layout have other roundings.
  RerunMachine(const RerunConfig& config, GradientChecks gradients, uint64_t seed, std::string layout,
               const ProcessGroup& world);

  bool active() const { return config_.rerun_mode != RerunMode::disabled; }

  // Judges the result of an iteration (counted from 0), before its update; `again` computes it once more.
  // All ranks call it alike. `tell` gets lines for people.
  Verdict judge(int64_t iteration, StepResult result, const std::function<StepResult()>& again,
                const std::function<void(const std::string&)>& tell);

  // What a checkpoint keeps of a result that waits for another machine; null: nothing does.
  Json state() const;
  // Takes it up again; the line for people where it cannot be, "" else.
  std::string restore(const Json& state);
  std::string summary() const;  // of --rerun-mode report_stats, at the end; "" in other modes

 private:
  struct Suspect {
    int64_t iteration = 0;
    StepResult result;
    std::string machine;    // where it was computed
    bool injected = false;  // by --error-injection-rate
  };

  std::string what_is_wrong(const StepResult& result) const;  // "": nothing
  bool is_fatal(const StepResult& result) const;
  bool injects(int64_t iteration) const;
  Verdict judge_elsewhere(const StepResult& result, const std::function<void(const std::string&)>& tell);
  void count_difference(const StepResult& first, const StepResult& second);

  const RerunConfig& config_;
  GradientChecks gradients_;
  uint64_t seed_;
  std::string layout_;
  ProcessGroup world_;
  std::string machine_;  // names of the machines and devices of all ranks
  bool first_ = true;    // nothing is judged in the first iteration
  int64_t losses_ = 0;   // seen so far
  double largest_ = 0;   // of them
  double largest_norm_ = 0;
  std::optional<Suspect> suspect_;
  int64_t compared_ = 0, different_ = 0;
  double worst_ = 0, sum_ = 0;  // relative differences
};

}  // namespace megatron
