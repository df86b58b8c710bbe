#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "megatron/autotune/fit/fit.h"
#include "megatron/autotune/fit/ordering.h"

namespace megatron::autotune {

struct ErrorSummary {
  int count = 0;
  double median = 0, p95 = 0, max = 0, mean = 0, bias = 0;  // of |predicted / measured - 1|; bias is signed
};
ErrorSummary summarize(std::vector<double> errors);

struct Evaluation {
  Calibration calibration;                       // fitted on all judged rows
  std::vector<double> low, high;                 // of each fitted constant over the draws
  std::map<std::string, ErrorSummary> fitted;    // by set, all judged rows
  std::map<std::string, ErrorSummary> held_out;  // by set, over the draws
  std::map<std::string, ErrorSummary> baseline;  // held out, constant MFU by class and precision
  std::map<std::string, ErrorSummary>
      shipped;               // by set, every row that is not excluded, with given constants
  ErrorSummary memory;       // of peaks, where they were measured
  double memory_lowest = 0;  // the most negative error: what "fits" must allow for
  Ordering ordering;         // of the judged rows, published tables alone
  double inside = 0;         // share of held-out rows within the stated standard deviation
  double loss = 0;           // held out: mean loss of the predicted best plan of a group
  double worst_loss = 0;
  int groups = 0;
};

// Priors of the table's kind, and what of them its rows determine.
CostConstants prior_constants(const Table& table);
std::span<const FittedConstant> free_constants(const Table& table);

// Fits on half of the configurations, judges on the other, so many times; `given` prices all rows beside
// that.
Evaluation evaluate(const Table& table, const Calibration& given, int draws, uint64_t seed);

// Plans of one model, GPU count and batch in predicted order.
struct RankedGroup {
  std::string name;
  std::vector<const TableRow*> order;  // fastest predicted first
  double loss = 0;                     // of the first against the best measured
};
std::vector<RankedGroup> rank_groups(std::vector<const TableRow*> rows, const Calibration& calibration);

}  // namespace megatron::autotune
