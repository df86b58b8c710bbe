#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megatron/training/step/step_report.h"

namespace megatron {

// What one iteration was like.
struct IterationReport {
  int64_t iteration = 0, iterations = 0;  // counted from 1; of the whole run
  int64_t consumed_samples = 0, skipped_samples = 0, global_batch_size = 0;
  double loss = 0, grad_norm = 0, learning_rate = 0, loss_scale = 1;
  std::optional<double> num_zeros, params_norm;  // where asked for
  int64_t skipped = 0, nans = 0;                 // iterations whose update was not taken, whose loss was NaN
  std::vector<LossTerm> terms;                   // beside the loss
  double milliseconds = 0, data_wait_ms = 0;     // of it, until the data was there
  double tokens_per_second = 0, model_tflops = 0;  // per rank
  // Of rank 0, the most up to now (after the first iteration, which autotunes GEMMs, anew): what tensors
  // and scratch memory held, and what was taken from the device for it.
  double memory_gib = 0, reserved_gib = 0;
};

// What Megatron's line tells: the means since the last one.
class IterationMeans {
 public:
  void add(const IterationReport& report);
  // The last report with the losses and the speed of all since the last reset(); there must be one.
  IterationReport report() const;
  void reset() { *this = {}; }

 private:
  IterationReport sum_;            // of losses, times and work; the rest is the last one's
  int64_t count_ = 0, taken_ = 0;  // iterations; those whose update was taken, which losses are of
};

// Megatron's line, without its time stamp where `stamp` is empty.
std::string iteration_line(const IterationReport& report, const std::string& stamp, bool throughput);
std::string time_stamp();  // "2026-01-31 23:59:59.000000"

}  // namespace megatron
