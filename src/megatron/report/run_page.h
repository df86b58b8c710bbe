#pragma once

#include <span>

#include "megatron/report/page.h"
#include "megatron/report/run_log.h"

namespace megatron::report {

struct RunPageOptions {
  std::string title;         // "" : the runs' names
  double peak_tflops = 0;    // of one rank's device; above 0, model FLOPs are shown as a share of it (MFU)
  std::string device;        // its name
  size_t bytes = 1'500'000;  // of numbers in the page, about
};

// Loss, rates, speed, memory and experts of one run, or of several side by side.
Page run_page(std::span<const RunLog> runs, const RunPageOptions& options = {});

}  // namespace megatron::report
