#include "megatron/training/run/section_timeouts.h"

#include <algorithm>
#include <filesystem>

#include "megatron/base/atomic_file.h"
#include "megatron/base/json.h"
#include "megatron/base/text_file.h"

namespace megatron {
namespace {

constexpr double kSafety = 5;          // learned time-outs, of the longest that was seen
constexpr double kMedians = 3;         // time-out of a step
constexpr double kLeastSeconds = 5;    // of it
constexpr size_t kStepsKept = 64;      // of which the median is taken
constexpr int64_t kStepsToLearn = 16;  // before a time-out of steps is kept
constexpr std::array kSectionNames{"setup", "step", "checkpointing"};  // those that are learned

// Time-outs of an earlier start. A file that cannot be read is as good as none: it is written again.
std::array<std::optional<double>, 4> read_learned(const std::string& path) {
  std::array<std::optional<double>, 4> learned;
  try {
    const Json json = Json::parse(read_text_file(path), path);
    for (size_t i = 0; i < kSectionNames.size(); ++i)
      if (const Json* section = json.find(kSectionNames[i])) learned[i] = section->at("timeout").as_double();
  } catch (const Error&) {
  }
  return learned;
}

}  // namespace

SectionTimeouts::SectionTimeouts(const Config& config, const ProcessGroup& world, StepTimes& steps)
    : active_(config.ft.enable_ft_package || config.inprocess_restart.enabled),
      learns_(active_ && config.ft.calc_ft_timeouts && !config.checkpoint.save.empty()),
      soft_timeout_(config.inprocess_restart.soft_timeout),
      warmup_(config.ft.ft_num_warmup_iters),
      path_(learns_ ? config.checkpoint.save + "/ft_state.json" : ""),
      longest_(config.dist.distributed_timeout_minutes * 60),
      world_(world),
      steps_(steps) {
  if (learns_ && std::filesystem::exists(path_)) learned_ = read_learned(path_);
  if (active_) world_.set_timeout(timeout(Section::setup));
}

double SectionTimeouts::median_step() const {
  std::vector<double> sorted = steps_.seconds;
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  return *middle;
}

std::chrono::milliseconds SectionTimeouts::timeout(Section section) const {
  double seconds = longest_;
  const std::optional<double>& learned = learned_[static_cast<size_t>(section)];
  if (learned) seconds = std::max(*learned, kLeastSeconds);
  if (section == Section::step && soft_timeout_)
    seconds = *soft_timeout_;
  else if (section == Section::step && steps_.count > warmup_)
    seconds = std::max(kLeastSeconds, kMedians * median_step());
  return std::chrono::milliseconds(static_cast<int64_t>(std::min(seconds, longest_) * 1e3));
}

void SectionTimeouts::note(double seconds) {
  double& largest = largest_[static_cast<size_t>(section_)];
  largest = std::max(largest, seconds);
  if (section_ != Section::step) return;
  if (steps_.seconds.size() < kStepsKept)
    steps_.seconds.push_back(seconds);
  else
    steps_.seconds[static_cast<size_t>(steps_.count) % kStepsKept] = seconds;
  ++steps_.count;
}

void SectionTimeouts::begin(Section section) {
  if (!active_) return;
  const auto now = Clock::now();
  if (section_ != Section::step || settled_)  // the first step behind another section is not timed
    note(std::chrono::duration<double>(now - begun_).count());
  settled_ = section == section_;
  begun_ = now;
  world_.set_timeout(std::max(timeout(section), settled_ ? std::chrono::milliseconds(0) : timeout(section_)));
  section_ = section;
}

void SectionTimeouts::finish(bool loaded) {
  if (!active_) return;
  begin(Section::setup);
  world_.set_timeout(std::chrono::milliseconds(static_cast<int64_t>(longest_ * 1e3)));
  if (!learns_) return;
  world_
      .all_reduce(Tensor::wrap(largest_.data(), {static_cast<int64_t>(kSections)}, DType::F64), ReduceOp::Max)
      .wait();
  if (world_.rank() != 0) return;
  const std::array<bool, kSectionNames.size()> learns{
      loaded, steps_.count >= kStepsToLearn, largest_[static_cast<size_t>(Section::checkpointing)] > 0};
  Json json = Json::object();
  for (size_t i = 0; i < learns.size(); ++i) {
    if (!learns[i] && !learned_[i]) continue;
    Json row = Json::object();
    row["timeout"] = std::max(learns[i] ? kSafety * largest_[i] : 0, learned_[i].value_or(0));
    row["max_seen"] = largest_[i];
    json[kSectionNames[i]] = row;
  }
  write_file_atomically(path_, json.dump(2) + "\n");
}

}  // namespace megatron
