#include "megatron/training/log/console_log.h"

#include <cmath>

#include "megatron/base/progress.h"
#include "megatron/training/log/metrics_file.h"

namespace megatron {
namespace {

class ConsoleLog final : public Callback {
 public:
  ConsoleLog(const Log& log, std::FILE* out) : log_(log), out_(out) {}

  void on(RunEvent event, RunView& view) override {
    if (!view.is_first_rank()) return;
    if (event == RunEvent::step_end) iteration(view);
    if (event == RunEvent::eval_end || event == RunEvent::test_end) evaluation(*view.evaluation);
    if (event == RunEvent::train_end) progress_.reset();
  }

  void told(std::string_view what) override {
    if (progress_) progress_->clear();
    log_.info("{}", what);
  }

 private:
  void iteration(const RunView& view) {
    const IterationReport& report = *view.report;
    const LoggerConfig& logger = view.config.logger;
    if (!progress_)
      progress_ = std::make_unique<Progress>(log_, "training", report.iterations, report.iteration);
    means_.add(report);
    const bool complete = report.iteration % logger.log_interval == 0;
    if (complete || report.iteration == 1 || report.iteration == report.iterations) {
      progress_->clear();
      fmt::print(out_, "{}\n", iteration_line(means_.report(), time_stamp(), logger.log_throughput));
      std::fflush(out_);
    }
    if (complete) means_.reset();
    progress_->update(report.iteration,
                      fmt::format("loss {:.4f}  {:.0f} tokens/s", report.loss, report.tokens_per_second));
  }

  void evaluation(const EvaluationReport& report) {
    const std::string set = report.set == "validation" ? "" : fmt::format(" on {} set", report.set);
    told(fmt::format("validation loss at iteration {}{} | lm loss value: {:.6E} | lm loss PPL: {:.6E} |",
                     report.iteration, set, report.loss, std::exp(std::min(20.0, report.loss))));
  }

  Log log_;
  std::FILE* out_;
  IterationMeans means_;
  std::unique_ptr<Progress> progress_;
};

class MetricsLog final : public Callback {
 public:
  MetricsLog(const Log& log, std::string path) : log_(log), path_(std::move(path)) {}

  void on(RunEvent event, RunView& view) override {
    if (event != RunEvent::step_end || !view.is_first_rank()) return;
    if (!file_) file_ = std::make_unique<MetricsFile>(path_, view.report->iteration - 1);
    const bool written = file_->write(*view.report);
    if (!written && !full_)
      log_.warning(
          "--metrics {}: there is no room for the row of iteration {}; rows are left out until there is",
          path_, view.report->iteration);
    full_ = !written;
  }

 private:
  Log log_;
  std::string path_;
  std::unique_ptr<MetricsFile> file_;
  bool full_ = false;  // the last row found no room
};

}  // namespace

std::shared_ptr<Callback> console_log(const Log& log, std::FILE* out) {
  return std::make_shared<ConsoleLog>(log, out);
}

std::shared_ptr<Callback> metrics_log(const Log& log, const std::string& path) {
  return std::make_shared<MetricsLog>(log, path);
}

}  // namespace megatron
