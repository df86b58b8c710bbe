#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/base/json.h"

namespace megatron::autotune {

// Times of one op with one set of operands, or of a collective of one size.
struct OpSample {
  std::string key;        // op, phase, dtypes and shapes: "linear forward fp32[512,256] fp32[768,256] …"
  std::string op, phase;  // "linear", "forward"
  double flops = 0, bytes = 0;
  std::vector<double> us;  // measurements, in microseconds

  double median() const;
  double quantile(double share) const;
};

// What was measured on one kind of device with one version of the libraries. As a file: JSON lines, of which
// the first names device and version.
class OpDatabase {
 public:
  std::string device, library;

  void add(const std::string& key, std::string_view op, std::string_view phase, double flops, double bytes,
           double us);
  // Puts another's samples beside these.
  void merge(const OpDatabase& other);
  bool empty() const { return samples_.empty(); }
  const std::map<std::string, OpSample>& samples() const { return samples_; }

  // Microseconds of just this key; none where it was not measured.
  std::optional<double> measured(const std::string& key) const;
  // An op that was measured with other operands gets the rate of those nearest to it in arithmetic and bytes,
  // the nearest counting most. None where the op was never measured in that phase.
  std::optional<double> estimated(std::string_view op, std::string_view phase, double flops,
                                  double bytes) const;
  // Measured where it is, else estimated.
  std::optional<double> seconds(const std::string& key, std::string_view op, std::string_view phase,
                                double flops, double bytes) const;

  std::string text() const;
  static OpDatabase parse(const std::string& text, std::string_view origin);

 private:
  std::map<std::string, OpSample> samples_;
};

}  // namespace megatron::autotune
