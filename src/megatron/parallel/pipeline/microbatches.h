#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megatron {

struct BatchSettings {
  std::optional<int64_t> global_batch = {};  // micro_batch × data_parallel where not given
  int64_t micro_batch = 1;
  int64_t data_parallel = 1;
  bool decrease_if_needed = false;  // round the global batch down to what the ranks can share
  std::string step_schedule = {};   // "0:768 250B:1536": thresholds are tokens where seq_length is given
  std::optional<int64_t> seq_length = {};
};

struct BatchStep {
  int64_t from_sample = 0;
  int64_t global_batch = 0;
};

// "threshold:batch" entries split by blanks or commas, numbers with K, M, B or T; ascending from 0.
std::vector<BatchStep> parse_batch_schedule(std::string_view text, std::optional<int64_t> seq_length);

// How large the global batch is, and into how many micro-batches each rank divides its share, as training
// goes on.
class BatchPlan {
 public:
  struct Batch {
    int64_t num_microbatches = 0;
    int64_t global_batch = 0;   // as configured
    int64_t running_batch = 0;  // as it is run, after decrease_if_needed
  };

  explicit BatchPlan(const BatchSettings& settings);

  Batch at(int64_t consumed_samples) const;
  // Refuses a step of the schedule that the ranks cannot share evenly.
  void check_divisible() const;

 private:
  std::vector<BatchStep> steps_;
  int64_t micro_batch_, data_parallel_;
  bool scheduled_;
};

}  // namespace megatron
