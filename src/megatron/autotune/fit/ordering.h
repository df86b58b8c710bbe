#pragma once

#include <map>
#include <span>
#include <string>

#include "megatron/autotune/fit/table.h"

namespace megatron::autotune {

struct PairCount {
  int right = 0, all = 0;
};

// Whether predictions stand in the order of the measurements.
struct Ordering {
  std::map<std::string, double> spearman;  // of TFLOP/s inside "dense 16-bit", "dense 8-bit", "MoE"
  PairCount same_precision;   // two rows of one release and precision that differ by more than 4 %
  PairCount cross_precision;  // two rows of one release whose precisions differ
};
Ordering ordering_of(std::span<const TableRow* const> rows, const Calibration& calibration);

// Rank correlation; ties share their mean rank.
double spearman(std::span<const double> a, std::span<const double> b);

}  // namespace megatron::autotune
