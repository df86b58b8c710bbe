#pragma once

#include <map>
#include <optional>
#include <vector>

#include "megatron/autotune/measure/step_database.h"

namespace megatron::autotune {

// What a step takes by the times of ops that were measured with other sizes.
struct StepPrice {
  double seconds = 0;  // the slower of device and host
  double device = 0, host = 0;
  double clock = 0;    // logarithm of the clock against that of the database on the average
  double unknown = 0;  // share of the time of ops that no model of the database ran
  std::map<std::string, double> by_family;  // seconds
};

// Prices ops by a database. Within a family the time is a · work + b · bytes + c, times what the nearest
// measured sizes deviate from that. Work of a GEMM counts tiles that a wave leaves idle. A GPU at its power
// limit lowers its clock by the mix of what it runs: each measured step has a clock, which its arithmetic
// ops have in common, and a linear model of how fast GEMMs and attention compute tells that of other steps.
class OpPricer {
 public:
  explicit OpPricer(StepDatabase database, int sms = 132);

  // Microseconds of one op at the clock of the database on the average; none where its family is unknown.
  std::optional<double> us(const StepOp& op) const;
  StepPrice price(const std::vector<StepOp>& ops) const;

  // Seconds of one GEMM of a linear layer, or of the linear layers of `groups` experts with `rows` each.
  enum class LinearPass : uint8_t { forward, input_gradient, weight_gradient };
  std::optional<double> linear_seconds(LinearPass pass, bool fp8, double rows, double width_in,
                                       double width_out, double groups) const;
  // Seconds of attention where each of `queries`, of all heads, sees `context` keys on the average.
  std::optional<double> attention_seconds(bool backward, double queries, double context, double dim) const;
  // Relative errors of the measured steps, each priced without its own ops.
  std::vector<double> held_out() const;

 private:
  struct Sample {
    StepOp op;
    std::array<double, 3> place;  // logarithms of sizes: near ones behave alike
    double us, deviation;
    size_t step;
  };
  struct Family {
    std::array<double, 3> factors = {};  // of work, bytes and one
    std::vector<Sample> samples;
  };

  void fit(size_t left_out);
  void fit_families(size_t left_out, const std::vector<double>& clocks);
  double base(const Family& family, const StepOp& op) const;
  std::optional<double> us(const StepOp& op, size_t without_step) const;
  double clock_of(const std::vector<StepOp>& ops, const std::vector<double>& us) const;

  StepDatabase database_;
  int sms_;
  std::map<std::string, Family> families_;
  std::array<double, 5> clock_ = {};  // of one, and of the rate of each class but memory
  double host_us_ = 0;                // of one op
};

}  // namespace megatron::autotune
