#include "megatron/training/log/progress_file.h"

#include <chrono>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <sstream>

#include "megatron/training/plan/flops.h"

namespace megatron {
namespace {

constexpr const char* kTimeFormat = "%Y-%m-%d %H:%M:%S";

std::string time_text(std::time_t time) {
  std::tm local{};
  localtime_r(&time, &local);
  char text[32];
  std::strftime(text, sizeof text, kTimeFormat, &local);
  return text;
}

// What a job, or several in a row, began with.
struct Beginning {
  std::time_t time = 0;
  double flops = 0;  // done before
};

// The number behind `label` in a line.
std::optional<double> figure(const std::string& line, const std::string& label) {
  const size_t at = line.find(label);
  if (at == std::string::npos) return std::nullopt;
  return std::strtod(line.c_str() + at + label.size(), nullptr);
}

// The first of the last jobs that had as many ranks. Lines that are not ours are passed over.
std::optional<Beginning> first_of_same_size(const std::string& path, int ranks) {
  std::optional<Beginning> first;
  double flops = 0;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (const auto done = figure(line, "Floating-point operations: ")) flops = *done;
    if (line.find("Starting job") == std::string::npos) continue;
    if (figure(line, "# GPUs: ") != static_cast<double>(ranks)) {
      first.reset();
      continue;
    }
    std::tm local{};
    local.tm_isdst = -1;
    if (!first && strptime(line.c_str(), kTimeFormat, &local)) first = {std::mktime(&local), flops};
  }
  return first;
}

class ProgressFile final : public Callback {
 public:
  explicit ProgressFile(const Log& log) : log_(log) {}

  void on(RunEvent event, RunView& view) override {
    if (!view.is_first_rank()) return;
    if (event == RunEvent::train_start) start(view);
    if (event == RunEvent::save) saved(view);
    // The last iteration is saved as the run ends.
    if (event == RunEvent::train_end && view.state.iteration > saved_) saved(view);
  }

 private:
  double flops_done(const RunView& view) const {
    return static_cast<double>(view.state.consumed_samples - view.state.skipped_samples) * flops_per_sample_;
  }

  void start(const RunView& view) {
    const ModelConfig& model = view.config.model;
    path_ = view.config.checkpoint.save + "/progress.txt";
    flops_per_sample_ =
        static_cast<double>(model.seq_length) *
        model_flops_per_token(model, model.seq_length, view.config.parallel.tensor_model_parallel_size);
    job_ = {std::time(nullptr), flops_done(view)};
    saved_ = view.state.iteration;
    all_ = first_of_same_size(path_, view.world.size()).value_or(job_);
    add(view, "Starting job");
  }

  double throughput(const RunView& view, const Beginning& since) const {
    const double seconds = std::max(1.0, std::difftime(std::time(nullptr), since.time));
    return (flops_done(view) - since.flops) / (seconds * 1e12 * view.world.size());
  }

  void saved(const RunView& view) {
    saved_ = view.state.iteration;
    const double tokens = static_cast<double>(view.state.consumed_samples * view.config.model.seq_length);
    add(view, fmt::format("Saved checkpoint\tIteration: {}\tJob throughput: {:.1f} TFLOP/s/GPU\tCumulative "
                          "throughput: {:.1f} TFLOP/s/GPU\tFloating-point operations: {:.2e}\tTokens (in "
                          "billions): {:.2f}",
                          view.state.iteration, throughput(view, job_), throughput(view, all_),
                          flops_done(view), tokens / 1e9));
  }

  void add(const RunView& view, const std::string& what) {
    const char* job = std::getenv("SLURM_JOB_ID");
    std::ofstream file(path_, std::ios::app);
    file << fmt::format("{}\tJob ID: {}\t# GPUs: {}\t{}\n", time_text(std::time(nullptr)), job ? job : "",
                        view.world.size(), what);
    file.flush();
    if (!file && !warned_) {
      log_.warning("--log-progress: {} cannot be written; lines will be missing", path_);
      warned_ = true;
    }
  }

  Log log_;
  std::string path_;
  double flops_per_sample_ = 0;
  Beginning job_, all_;
  int64_t saved_ = 0;  // the iteration of the last checkpoint
  bool warned_ = false;
};

}  // namespace

std::shared_ptr<Callback> progress_file(const Log& log) { return std::make_shared<ProgressFile>(log); }

}  // namespace megatron
