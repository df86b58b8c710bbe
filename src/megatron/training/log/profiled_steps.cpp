#include "megatron/training/log/profiled_steps.h"

#include <algorithm>

#include "megatron/base/atomic_file.h"
#include "megatron/base/error.h"

namespace megatron {

void StepRecorder::start() {
  if (listens_) return;
  next_ = ctx_.tracer;
  ctx_.tracer = this;
  listens_ = true;
  started();
}

void StepRecorder::stop() {
  if (!listens_) return;
  stopped();
  listens_ = false;
  if (ctx_.tracer == this) {
    ctx_.tracer = next_;
    return;
  }
  // One that began later may still listen, and must not tell this one any more.
  for (auto* later = dynamic_cast<StepRecorder*>(ctx_.tracer); later;
       later = dynamic_cast<StepRecorder*>(later->next_))
    if (later->next_ == this) later->next_ = next_;
}

bool is_recorded(const ProfilingConfig& config, int64_t rank) {
  const std::vector<int64_t>& ranks = config.profile_ranks;
  return ranks.empty() || std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

std::string path_beside_logs(const Config& config, const std::string& name) {
  if (name.starts_with('/')) return name;
  const std::string& board = config.logger.tensorboard_dir;
  const std::string& folder = !board.empty() ? board : config.checkpoint.save;
  return folder.empty() ? name : folder + "/" + name;
}

bool write_profile(const Log& log, const char* what, const std::string& path, const std::string& text) {
  try {
    write_file_atomically(path, text);
    return true;
  } catch (const Error& error) {
    log.warning("{} cannot be written: {}", what, error.what());
    return false;
  }
}

}  // namespace megatron
