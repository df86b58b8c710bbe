#include "megatron/autotune/fit/fit.h"

#include <algorithm>
#include <cmath>

namespace megatron::autotune {
namespace {

constexpr double kNoise = 0.03;  // by which repeated runs differ
constexpr double kLayerSpread = 0.08;
constexpr double kHuber = 2.0;  // errors beyond this many times the noise count linearly

double huber(double r) {
  const double a = std::abs(r);
  return a <= kHuber ? r * r : kHuber * (2 * a - kHuber);
}

// What is searched for: logarithms of the free constants, then of the layers' factors.
class FitProblem {
 public:
  FitProblem(std::span<const TableRow* const> rows, const CostConstants& prior,
             std::span<const FittedConstant> free, bool layers)
      : rows_(rows), prior_(prior), free_(free) {
    if (layers)
      for (const TableRow* row : rows) shapes_.push_back(layer_shape(*row->model, row->plan));
    std::sort(shapes_.begin(), shapes_.end());
    shapes_.erase(std::unique(shapes_.begin(), shapes_.end()), shapes_.end());
  }

  size_t size() const { return free_.size() + shapes_.size(); }
  double prior(size_t i) const { return i < free_.size() ? std::log(prior_.*free_[i].member) : 0; }
  double spread(size_t i) const { return i < free_.size() ? free_[i].spread : kLayerSpread; }
  double low(size_t i) const { return i < free_.size() ? std::log(free_[i].low) : -0.7; }
  double high(size_t i) const { return i < free_.size() ? std::log(free_[i].high) : 0.7; }
  double pull(const std::vector<double>& logs, size_t i) const { return (logs[i] - prior(i)) / spread(i); }

  Calibration calibration(const std::vector<double>& logs) const {
    Calibration c{prior_, {}};
    for (size_t i = 0; i < free_.size(); ++i) c.constants.*free_[i].member = std::exp(logs[i]);
    for (size_t i = 0; i < shapes_.size(); ++i)
      c.layers.push_back({shapes_[i], std::exp(logs[free_.size() + i])});
    return c;
  }

  // Whether the row's prediction depends on the parameter at all.
  bool touches(size_t i, const TableRow& row) const {
    return i < free_.size() || layer_shape(*row.model, row.plan) == shapes_[i - free_.size()];
  }

  std::vector<double> residuals(const std::vector<double>& logs) const {
    const Calibration c = calibration(logs);
    std::vector<double> r;
    r.reserve(rows_.size());
    for (const TableRow* row : rows_) r.push_back(residual(*row, c));
    return r;
  }

  // Change of each residual with one parameter.
  std::vector<double> slopes(std::vector<double> logs, size_t i, const std::vector<double>& r) const {
    constexpr double kDelta = 1e-3;
    logs[i] += kDelta;
    const Calibration c = calibration(logs);
    std::vector<double> slope(rows_.size(), 0);
    for (size_t k = 0; k < rows_.size(); ++k)
      if (touches(i, *rows_[k])) slope[k] = (residual(*rows_[k], c) - r[k]) / kDelta;
    return slope;
  }

  double objective(const std::vector<double>& logs, const std::vector<double>& r) const {
    double sum = 0;
    for (double value : r) sum += huber(value);
    for (size_t i = 0; i < size(); ++i) sum += pull(logs, i) * pull(logs, i);
    return sum;
  }

 private:
  static double residual(const TableRow& row, const Calibration& c) {
    return std::log(row.predicted(c) / row.measured) / kNoise;
  }

  std::span<const TableRow* const> rows_;
  const CostConstants& prior_;
  std::span<const FittedConstant> free_;
  std::vector<LayerShape> shapes_;
};

// Solves A x = b for a symmetric positive definite A of n rows.
std::vector<double> solve(std::vector<double> a, std::vector<double> b) {
  const size_t n = b.size();
  for (size_t k = 0; k < n; ++k)
    for (size_t i = k + 1; i < n; ++i) {
      const double factor = a[i * n + k] / a[k * n + k];
      for (size_t j = k; j < n; ++j) a[i * n + j] -= factor * a[k * n + j];
      b[i] -= factor * b[k];
    }
  for (size_t k = n; k-- > 0;) {
    for (size_t j = k + 1; j < n; ++j) b[k] -= a[k * n + j] * b[j];
    b[k] /= a[k * n + k];
  }
  return b;
}

}  // namespace

Calibration fit_constants(std::span<const TableRow* const> rows, const CostConstants& prior,
                          std::span<const FittedConstant> free, bool layers) {
  const FitProblem problem(rows, prior, free, layers);
  const size_t n = problem.size();
  std::vector<double> logs(n);
  for (size_t i = 0; i < n; ++i) logs[i] = problem.prior(i);
  std::vector<double> r = problem.residuals(logs);
  double best = problem.objective(logs, r);
  double damping = 1e-2;
  for (int step = 0; step < 30; ++step) {
    std::vector<double> normal(n * n, 0), right(n, 0);
    std::vector<std::vector<double>> slopes;
    for (size_t i = 0; i < n; ++i) slopes.push_back(problem.slopes(logs, i, r));
    for (size_t k = 0; k < r.size(); ++k) {
      const double weight = std::abs(r[k]) <= kHuber ? 1 : kHuber / std::abs(r[k]);
      for (size_t i = 0; i < n; ++i) {
        if (slopes[i][k] == 0) continue;
        right[i] -= weight * slopes[i][k] * r[k];
        for (size_t j = 0; j < n; ++j) normal[i * n + j] += weight * slopes[i][k] * slopes[j][k];
      }
    }
    for (size_t i = 0; i < n; ++i) {
      const double inverse = 1 / problem.spread(i);
      normal[i * n + i] += inverse * inverse;
      right[i] -= inverse * problem.pull(logs, i);
      normal[i * n + i] *= 1 + damping;
    }
    const std::vector<double> move = solve(std::move(normal), std::move(right));
    std::vector<double> next = logs;
    for (size_t i = 0; i < n; ++i)
      next[i] = std::clamp(next[i] + std::clamp(move[i], -0.5, 0.5), problem.low(i), problem.high(i));
    std::vector<double> next_r = problem.residuals(next);
    const double value = problem.objective(next, next_r);
    if (!(value < best)) {
      damping *= 8;
      if (damping > 1e6) break;
      continue;
    }
    const bool settled = best - value < 1e-4 * best;
    logs = std::move(next);
    r = std::move(next_r);
    best = value;
    damping = std::max(1e-4, damping / 4);
    if (settled) break;
  }
  return problem.calibration(logs);
}

}  // namespace megatron::autotune
