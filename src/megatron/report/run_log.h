#pragma once

#include <map>
#include <string>
#include <vector>

#include "megatron/report/chart.h"

namespace megatron::report {

// What a training run wrote about itself: one number a metric and iteration, and what happened.
struct RunLog {
  std::string name;  // of its folder or file
  std::vector<double> iterations;
  // By the keys of its rows, each as long as iterations; NaN where a row lacks it.
  std::map<std::string, std::vector<double>> metrics;
  std::map<std::string, std::vector<std::vector<double>>>
      lists;                 // values of several numbers: loads of experts
  std::vector<Mark> events;  // saves, skipped updates, starts

  const std::vector<double>* find(const std::string& key) const;
};

// Reads the --metrics file that `path` is, or the one in the folder `path`, and a progress.txt beside it. A
// ConfigError names file and line of what makes no sense; a last row that was cut off is left out.
RunLog read_run_log(const std::string& path);

}  // namespace megatron::report
