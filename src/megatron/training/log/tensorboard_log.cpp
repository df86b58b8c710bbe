#include "megatron/training/log/tensorboard_log.h"

#include <algorithm>
#include <cmath>

#include "megatron/training/log/tensorboard_file.h"
#include "megatron/training/log/timers.h"

namespace megatron {
namespace {

class TensorBoardLog final : public Callback {
 public:
  explicit TensorBoardLog(const Log& log) : log_(log) {}

  void on(RunEvent event, RunView& view) override {
    if (!view.is_first_rank()) return;
    switch (event) {
      case RunEvent::train_start:
        start(view);
        break;
      case RunEvent::step_end:
        if (view.report->iteration % view.config.logger.tensorboard_log_interval == 0) step(view);
        if (view.report->iteration % view.config.logger.log_interval == 0) interval(view);
        break;
      case RunEvent::eval_end:
      case RunEvent::test_end:
        evaluation(view);
        break;
      case RunEvent::train_end:
        file_.reset();
        break;
      default:
        break;
    }
  }

 private:
  void start(const RunView& view) {
    const LoggerConfig& logger = view.config.logger;
    file_ = std::make_unique<TensorBoardFile>(
        logger.tensorboard_dir, log_,
        TensorBoardFile::Options{.queued_events = logger.tensorboard_queue_size});
    file_->text("settings", fmt::format("```json\n{}\n```", view.config.to_json().dump(2)),
                view.state.iteration);
  }

  void scalar(const std::string& tag, double value) { file_->scalar(tag, value, iteration_); }
  void both(const std::string& tag, double value) {
    scalar(tag, value);
    file_->scalar(tag + " vs samples", value, samples_);
  }

  void step(const RunView& view) {
    const IterationReport& report = *view.report;
    const LoggerConfig& logger = view.config.logger;
    iteration_ = report.iteration;
    samples_ = report.consumed_samples;
    both("learning-rate", report.learning_rate);
    if (report.skipped_samples > 0)
      scalar("skipped-train-samples", static_cast<double>(report.skipped_samples));
    both("batch-size", static_cast<double>(report.global_batch_size));
    both("lm loss", report.loss);
    for (const LossTerm& term : report.terms) both(term.name, term.value);
    if (logger.log_loss_scale_to_tensorboard) both("loss-scale", report.loss_scale);
    if (logger.log_world_size_to_tensorboard) both("world-size", view.world.size());
    both("grad-norm", report.grad_norm);
    if (report.num_zeros) both("num-zeros", *report.num_zeros);
    if (report.params_norm) both("params-norm", *report.params_norm);
    if (logger.log_memory_to_tensorboard) memory(view.ctx.allocator->statistics());
    milliseconds_ += report.milliseconds;
    tflops_ += report.model_tflops * report.milliseconds;
    ++steps_;
  }

  void memory(const MemoryStatistics& memory) {
    scalar("mem-reserved-bytes", static_cast<double>(memory.reserved));
    scalar("mem-allocated-bytes", static_cast<double>(memory.total.current));
    scalar("mem-max-allocated-bytes", static_cast<double>(memory.total.peak));
    scalar("mem-allocated-count", static_cast<double>(memory.total.allocations));
  }

  // Means since the last log line.
  void interval(const RunView& view) {
    const LoggerConfig& logger = view.config.logger;
    if (steps_ == 0) return;
    if (logger.log_timers_to_tensorboard) {
      both("iteration-time", milliseconds_ / static_cast<double>(steps_) / 1e3);
      if (view.timers) timers(*view.timers, logger.timing_log_level);
    }
    if (logger.log_throughput || logger.log_throughput_to_tensorboard)
      scalar("throughput", tflops_ / milliseconds_);
    milliseconds_ = tflops_ = 0;
    steps_ = 0;
  }

  // What the slowest rank took, in seconds.
  void timers(const TimerTable& table, int64_t level) {
    for (size_t i = 0; i < table.timers.size(); ++i) {
      double most = 0;
      for (const std::vector<double>& rank : table.seconds) most = std::max(most, rank[i]);
      if (most > 0 && table.timers[i].level <= level) scalar(table.timers[i].name + "-time", most);
    }
  }

  void evaluation(const RunView& view) {
    const EvaluationReport& report = *view.evaluation;
    iteration_ = report.iteration;
    samples_ = view.state.consumed_samples;
    const std::string set = report.set == "validation" ? "" : "-" + report.set;
    for (const LossTerm& term : report.terms) both(term.name + set, term.value);
    if (!report.terms.empty()) return;
    both("lm loss validation" + set, report.loss);
    if (view.config.logger.log_validation_ppl_to_tensorboard)
      both("lm loss validation ppl" + set, std::exp(std::min(20.0, report.loss)));
  }

  Log log_;
  std::unique_ptr<TensorBoardFile> file_;
  int64_t iteration_ = 0, samples_ = 0;  // of the point that is written
  double milliseconds_ = 0, tflops_ = 0;
  int64_t steps_ = 0;
};

}  // namespace

std::shared_ptr<Callback> tensorboard_log(const Log& log) { return std::make_shared<TensorBoardLog>(log); }

}  // namespace megatron
