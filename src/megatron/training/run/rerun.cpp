#include "megatron/training/run/rerun.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "megatron/base/error.h"
#include "megatron/base/hash.h"
#include "megatron/device/gpu_info.h"
#include "megatron/device/runtime.h"
#include "megatron/tensor/philox.h"

namespace megatron {
namespace {

// How many losses are seen before one can be far above them.
constexpr int64_t kLossesBeforeSpikes = 100;
constexpr double kLargeNorm = 10;  // times the largest norm so far, as in Megatron-LM

uint64_t bits_of(double value) {
  if (std::isnan(value)) value = std::nan("");
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// Host names and GPUs of all ranks, as one hash.
std::string machine_of(const ProcessGroup& world) {
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  std::string text = host;
  if (const int gpus = cuda_device_count(); gpus > 0) text += gpu_name(world.rank() % gpus);
  uint64_t own = hash_text(text);
  std::vector<uint64_t> all(static_cast<size_t>(world.size()));
  world
      .all_gather(Tensor::wrap(&own, {1}, DType::I64),
                  Tensor::wrap(all.data(), {static_cast<int64_t>(all.size())}, DType::I64))
      .wait();
  std::string joined;
  for (uint64_t part : all) joined += fmt::format("{:016x}", part);
  return fmt::format("{:016x}", hash_text(joined));
}

Json number(double value) {  // JSON has no NaN and no infinity
  return Json(fmt::format("{:016x}", bits_of(value)));
}

double number_of(const Json& text) {
  const uint64_t bits = std::stoull(text.as_string(), nullptr, 16);
  double value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace

bool StepResult::operator==(const StepResult& other) const {
  return bits_of(loss) == bits_of(other.loss) && bits_of(grad_norm) == bits_of(other.grad_norm);
}

RerunMachine::RerunMachine(const RerunConfig& config, GradientChecks gradients, uint64_t seed,
                           std::string layout, const ProcessGroup& world)
    : config_(config), gradients_(gradients), seed_(seed), layout_(std::move(layout)), world_(world) {
  if (active()) machine_ = machine_of(world);
}

bool RerunMachine::is_fatal(const StepResult& result) const {
  return (config_.check_for_nan_in_loss && !std::isfinite(result.loss)) ||
         (gradients_.finite && !std::isfinite(result.grad_norm));
}

std::string RerunMachine::what_is_wrong(const StepResult& result) const {
  if (config_.check_for_nan_in_loss && !std::isfinite(result.loss))
    return fmt::format("the loss is {}", result.loss);
  if (gradients_.finite && !std::isfinite(result.grad_norm))
    return fmt::format("the norm of the gradient is {}", result.grad_norm);
  if (config_.check_for_spiky_loss && losses_ >= kLossesBeforeSpikes &&
      result.loss > config_.spiky_loss_factor * largest_)
    return fmt::format("the loss is {:.6g}, more than {:.6g} times the largest before ({:.6g})", result.loss,
                       config_.spiky_loss_factor, largest_);
  if (gradients_.large && losses_ >= kLossesBeforeSpikes && result.grad_norm > kLargeNorm * largest_norm_)
    return fmt::format(
        "the norm of the gradient is {:.6g}, more than {:.6g} times the largest before ({:.6g})",
        result.grad_norm, kLargeNorm, largest_norm_);
  return "";
}

bool RerunMachine::injects(int64_t iteration) const {
  if (config_.error_injection_rate == 0) return false;
  const auto random = Philox::at({seed_, 0x7265'7275'6e00}, static_cast<uint64_t>(iteration));
  return random.word[0] % static_cast<uint64_t>(config_.error_injection_rate) == 0;
}

void RerunMachine::count_difference(const StepResult& first, const StepResult& second) {
  const auto apart = [](double a, double b) {
    if (bits_of(a) == bits_of(b)) return 0.0;
    return std::abs(a - b) / std::max(std::abs(a), 1e-300);
  };
  const double difference =
      std::max(apart(first.loss, second.loss), apart(first.grad_norm, second.grad_norm));
  ++compared_;
  different_ += difference != 0;
  worst_ = std::max(worst_, difference);
  sum_ += difference;
}

RerunMachine::Verdict RerunMachine::judge_elsewhere(const StepResult& result,
                                                    const std::function<void(const std::string&)>& tell) {
  if (suspect_->machine == machine_) {
    tell(
        fmt::format("iteration {}: its result waits to be computed on other devices, and these are the same; "
                    "start the run elsewhere",
                    suspect_->iteration + 1));
    return Verdict::save_and_leave;
  }
  const bool persistent =
      suspect_->injected && config_.error_injection_type == InjectedError::persistent_error;
  if (result == suspect_->result && !persistent)
    tell(
        fmt::format("iteration {}: other devices compute the same, so the result is right as such: look at "
                    "data, model and learning rate",
                    suspect_->iteration + 1));
  else
    tell(
        fmt::format("iteration {}: other devices compute something else: one of the devices that the run was "
                    "on before is broken",
                    suspect_->iteration + 1));
  suspect_.reset();
  return Verdict::failed;
}

RerunMachine::Verdict RerunMachine::judge(int64_t iteration, StepResult result,
                                          const std::function<StepResult()>& again,
                                          const std::function<void(const std::string&)>& tell) {
  if (!active()) return Verdict::go_on;
  if (suspect_ && suspect_->iteration == iteration) return judge_elsewhere(result, tell);
  if (std::exchange(first_, false)) return Verdict::go_on;
  if (config_.rerun_mode == RerunMode::report_stats) {
    count_difference(result, again());
    return Verdict::go_on;
  }
  const bool injected = injects(iteration);
  std::string wrong = what_is_wrong(result);
  if (injected && wrong.empty())
    wrong =
        fmt::format("an error is planted ({})",
                    names(config_.error_injection_type)[static_cast<size_t>(config_.error_injection_type)]);
  if (wrong.empty()) {
    ++losses_;
    largest_ = std::max(largest_, result.loss);
    largest_norm_ = std::max(largest_norm_, result.grad_norm);
    return Verdict::go_on;
  }
  const bool fatal = injected || is_fatal(result);
  tell(fmt::format("iteration {}: {}; it is computed again", iteration + 1, wrong));
  const StepResult second = again();
  const bool transient =
      injected ? config_.error_injection_type == InjectedError::transient_error : !(second == result);
  if (transient) {
    tell(fmt::format("iteration {}: the second result is another one: possibly a transient error of a device",
                     iteration + 1));
    return fatal ? Verdict::failed : Verdict::go_on;
  }
  if (!fatal) {
    tell(fmt::format("iteration {}: the second result is the same; training goes on", iteration + 1));
    return Verdict::go_on;
  }
  suspect_ = Suspect{iteration, result, machine_, injected};
  return Verdict::save_and_leave;
}

Json RerunMachine::state() const {
  if (!suspect_) return {};
  Json json = Json::object();
  json["iteration"] = suspect_->iteration;
  json["loss"] = number(suspect_->result.loss);
  json["grad_norm"] = number(suspect_->result.grad_norm);
  json["machine"] = suspect_->machine;
  json["layout"] = layout_;
  json["injected"] = suspect_->injected;
  return json;
}

std::string RerunMachine::restore(const Json& state) {
  if (!active() || !state.is_object()) return "";
  if (state.at("layout").as_string() != layout_)
    return fmt::format("iteration {} was to be computed on other devices under {}; this is {}, so it is not",
                       state.at("iteration").as_int() + 1, state.at("layout").as_string(), layout_);
  suspect_ = Suspect{state.at("iteration").as_int(),
                     {number_of(state.at("loss")), number_of(state.at("grad_norm"))},
                     state.at("machine").as_string(),
                     state.at("injected").as_bool()};
  return "";
}

std::string RerunMachine::summary() const {
  if (config_.rerun_mode != RerunMode::report_stats || compared_ == 0) return "";
  return fmt::format(
      "{} iterations were computed twice: {} differ, relative difference {:.3g} at most, {:.3g} "
      "in the mean",
      compared_, different_, worst_, sum_ / static_cast<double>(compared_));
}

}  // namespace megatron
