#include "megatron/autotune/fit/ordering.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace megatron::autotune {
namespace {

std::vector<double> ranks_of(std::span<const double> values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t i, size_t j) { return values[i] < values[j]; });
  std::vector<double> ranks(values.size());
  for (size_t first = 0; first < order.size();) {
    size_t last = first;
    while (last + 1 < order.size() && values[order[last + 1]] == values[order[first]]) ++last;
    for (size_t i = first; i <= last; ++i) ranks[order[i]] = static_cast<double>(first + last) / 2;
    first = last + 1;
  }
  return ranks;
}

double correlation(const std::vector<double>& a, const std::vector<double>& b) {
  const auto n = static_cast<double>(a.size());
  const double mean_a = std::accumulate(a.begin(), a.end(), 0.0) / n,
               mean_b = std::accumulate(b.begin(), b.end(), 0.0) / n;
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    ab += (a[i] - mean_a) * (b[i] - mean_b);
    aa += (a[i] - mean_a) * (a[i] - mean_a);
    bb += (b[i] - mean_b) * (b[i] - mean_b);
  }
  return aa > 0 && bb > 0 ? ab / std::sqrt(aa * bb) : 0;
}

}  // namespace

double spearman(std::span<const double> a, std::span<const double> b) {
  return a.size() < 2 ? 0 : correlation(ranks_of(a), ranks_of(b));
}

Ordering ordering_of(std::span<const TableRow* const> rows, const Calibration& calibration) {
  struct Rates {
    std::vector<double> predicted, measured;
  };
  std::map<std::string, Rates> classes;
  std::vector<double> predicted, measured;  // model FLOP/s of a GPU
  for (const TableRow* row : rows) {
    const double flops = row->model->flops_per_token(row->plan.seq);
    predicted.push_back(row->predicted(calibration) * flops);
    measured.push_back(row->measured * flops);
    Rates& rates = classes[row->moe ? "MoE" : row->plan.fp8() ? "dense 8-bit" : "dense 16-bit"];
    rates.predicted.push_back(predicted.back());
    rates.measured.push_back(measured.back());
  }
  Ordering result;
  for (const auto& [name, rates] : classes) result.spearman[name] = spearman(rates.predicted, rates.measured);
  for (size_t i = 0; i < rows.size(); ++i)
    for (size_t j = i + 1; j < rows.size(); ++j) {
      if (rows[i]->release != rows[j]->release || rows[i]->moe != rows[j]->moe) continue;
      const double ratio = measured[i] / measured[j];
      if (std::abs(std::log(ratio)) < std::log(1.04)) continue;
      const bool right = (predicted[i] > predicted[j]) == (ratio > 1);
      PairCount& count =
          rows[i]->plan.precision == rows[j]->plan.precision ? result.same_precision : result.cross_precision;
      count.all += 1;
      count.right += right;
    }
  return result;
}

}  // namespace megatron::autotune
