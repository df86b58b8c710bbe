#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "megatron/inference/engine.h"

namespace megatron {

// Counts and times of requests, in Prometheus' text form and under the names that vLLM gives them, so that
// its dashboards show this server too.
class Metrics {
 public:
  explicit Metrics(const std::string& model);

  // Seconds from a request's arrival to its first token; between two of its tokens; to its end.
  void first_token(double seconds) { observe(first_token_, seconds); }
  void token_gap(double seconds) { observe(token_gap_, seconds); }
  void finished(const std::string& reason, double seconds, int64_t prompt_tokens, int64_t generated_tokens);
  void refused(int status);

  std::string text(const EngineStats& stats) const;

 private:
  struct Histogram {
    std::vector<double> bounds;
    std::vector<int64_t> counts = std::vector<int64_t>(bounds.size() + 1);
    double sum = 0;
  };
  void observe(Histogram& histogram, double value);
  void write(std::string& out, const char* name, const char* help, const Histogram& histogram) const;

  static std::vector<double> seconds() {
    return {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5,
            0.75,  1,     2.5,  5,    7.5,  10,   20,   40,  80,   160};
  }
  static std::vector<double> lengths() {
    return {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 100000};
  }

  std::string model_;  // as it stands in a label
  mutable std::mutex mutex_;
  Histogram first_token_{seconds()}, token_gap_{seconds()}, end_to_end_{seconds()};
  Histogram prompt_{lengths()}, generated_{lengths()};
  std::map<std::string, int64_t> finished_;
  std::map<int, int64_t> refused_;
  int64_t prompt_tokens_ = 0, generated_tokens_ = 0;
};

}  // namespace megatron
