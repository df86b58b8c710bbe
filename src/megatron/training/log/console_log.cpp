#include "megatron/training/log/console_log.h"

#include <atomic>
#include <cmath>

#include "megatron/base/progress.h"
#include "megatron/models/parallel_setup.h"
#include "megatron/training/health/stragglers.h"
#include "megatron/training/log/memory_report.h"
#include "megatron/training/log/metrics_file.h"
#include "megatron/training/log/timers.h"
#include "megatron/training/plan/theoretical_memory.h"

namespace megatron {
namespace {

class ConsoleLog final : public Callback {
 public:
  ConsoleLog(const Log& log, std::FILE* out) : log_(log), out_(out) {}

  void on(RunEvent event, RunView& view) override {
    if (event == RunEvent::train_start) first_ = view.state.iteration + 1;
    // All ranks report, the first one prints.
    const std::string memory =
        event == RunEvent::step_end && reports_memory(view) ? memory_report(view) : std::string();
    if (!view.is_first_rank()) return;
    if (event == RunEvent::step_end) iteration(view);
    if (!memory.empty()) print(memory + theoretical_line(view));
    if (view.timers) timers(view);
    if (event == RunEvent::eval_end || event == RunEvent::test_end) evaluation(*view.evaluation);
    if (event == RunEvent::train_end) progress_.reset();
  }

  void on_message(std::string_view what) override {
    if (progress_) progress_->clear();
    log_.info("{}", what);
  }

 private:
  // Lines above the progress bar.
  void print(std::string_view lines) {
    if (progress_) progress_->clear();
    fmt::print(out_, "{}", lines);
    std::fflush(out_);
  }

  // After the first two logged iterations of each start, and at --log-memory-interval.
  bool reports_memory(const RunView& view) const {
    const int64_t at = view.report->iteration, every = view.config.logger.log_interval,
                  asked = view.config.logger.log_memory_interval, second = (first_ / every + 1) * every;
    return at == first_ || at == second || (asked > 0 && at % asked == 0);
  }

  // Megatron-LM's estimate, beside the first report.
  std::string theoretical_line(const RunView& view) const {
    if (view.report->iteration != first_) return "";
    const ParallelSizes sizes = parallel_sizes(view.config, view.world.size());
    const int64_t samples = view.config.train.micro_batch_size * sizes.dp();
    const auto memory = theoretical_memory(view.config, sizes,
                                           view.report->global_batch_size / std::max<int64_t>(1, samples));
    return memory ? memory->line() : "";
  }

  void iteration(const RunView& view) {
    const IterationReport& report = *view.report;
    const LoggerConfig& logger = view.config.logger;
    if (!progress_)
      progress_ = std::make_unique<Progress>(log_, "training", report.iterations, report.iteration);
    means_.add(report);
    const bool complete = report.iteration % logger.log_interval == 0;
    const bool shown = complete || report.iteration == first_ || report.iteration == report.iterations;
    if (shown && !logger.skip_train_metrics_log)
      print(iteration_line(means_.report(), time_stamp(), logger.log_throughput) + "\n");
    if (complete) means_.reset();
    progress_->update(report.iteration,
                      fmt::format("loss {:.4f}  {:.0f} tokens/s", report.loss, report.tokens_per_second));
  }

  void timers(const RunView& view) {
    const LoggerConfig& logger = view.config.logger;
    if (logger.timing_log_level > 0)
      if (const std::string block =
              timers_block(*view.timers, logger.timing_log_level, logger.timing_log_option);
          !block.empty())
        print(block + "\n");
    if (logger.log_straggler)
      if (const std::string report = straggler_report(*view.timers, logger.straggler_minmax_count);
          !report.empty())
        print(report + "\n");
  }

  // Framed by dashes, as Megatron-LM does.
  void evaluation(const EvaluationReport& report) {
    const std::string set = report.set == "validation" ? "" : fmt::format(" on {} set", report.set);
    std::string line =
        fmt::format(" validation loss at iteration {}{} | lm loss value: {:.6E} | lm loss PPL: {:.6E} | ",
                    report.iteration, set, report.loss, std::exp(std::min(20.0, report.loss)));
    if (!report.terms.empty()) {
      line = fmt::format(" validation at iteration {}{} | ", report.iteration, set);
      for (const LossTerm& term : report.terms) line += fmt::format("{}: {:.6E} | ", term.name, term.value);
    }
    const std::string dashes(line.size() + 1, '-');
    print(fmt::format("{0}\n{1}\n{0}\n", dashes, line));
  }

  Log log_;
  std::FILE* out_;
  std::atomic<int64_t> first_ = 1;  // iteration of this start, which every rank sets alike
  IterationMeans means_;            // this and what follows are the first rank's
  std::unique_ptr<Progress> progress_;
};

class MetricsLog final : public Callback {
 public:
  MetricsLog(const Log& log, std::string path) : log_(log), path_(std::move(path)) {}

  void on(RunEvent event, RunView& view) override {
    if (!view.is_first_rank()) return;
    if (event == RunEvent::train_start) file_ = std::make_unique<MetricsFile>(path_, view.state.iteration);
    if (event != RunEvent::step_end) return;
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
