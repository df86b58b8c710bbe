#include "megatron/autotune/measure/op_pricer.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace megatron::autotune {
namespace {

constexpr size_t kNone = std::numeric_limits<size_t>::max();
// How far a deviation reaches, in logarithms of sizes, and how many samples' worth of none stands against it.
constexpr double kReach = 0.45, kNoDeviation = 0.3;

struct Tile {
  double m, n, speed;
};
constexpr Tile kTiles[] = {{128, 256, 1.0},  {256, 128, 1.0}, {192, 128, 0.97},
                           {128, 128, 0.93}, {64, 256, 0.88}, {64, 128, 0.8}};

// Share of the SMs' time in which they compute, by the best of the tiles. Waves are counted half: a GEMM that
// overlaps its last wave with the next kernel does not wait for it.
double busy_share(double m, double n, double groups, int sms, bool one_tile) {
  double best = 0;
  for (const Tile& tile : kTiles) {
    const double tiles = std::ceil(m / tile.m) * std::ceil(n / tile.n) * groups;
    const double edges = m * n * groups / (tiles * tile.m * tile.n);
    const double busy = edges * tiles / (std::ceil(tiles / sms) * sms);
    best = std::max(best, tile.speed * 0.5 * (busy + std::min(edges, edges * tiles / sms)));
    if (one_tile) break;
  }
  return best;
}

bool slows_with_clock(OpClass kind) { return kind != OpClass::memory; }

// Billions of operations and millions of bytes, as far as time depends on them.
std::array<double, 2> work_of(const StepOp& op, int sms) {
  const auto& s = op.sizes;
  const bool gradient = op.family.find("weight gradient") != std::string::npos;
  switch (op.kind) {
    case OpClass::attention:
      return {s[0] * s[1] * s[2] * 1e-9, s[0] * s[2] * 2e-6};
    case OpClass::grouped_gemm: {
      const double flops = 2 * s[1] * s[2] * s[3] * 1e-9;
      const double bytes = (s[1] * (s[2] + s[3]) + s[0] * s[2] * s[3]) * 2e-6;
      // Rows that fill up an expert's last tile are not computed.
      const double rows = std::max(64.0, 64 * std::round(s[1] / s[0] / 64));
      const double share =
          gradient ? busy_share(s[2], s[3], s[0], sms, true) : busy_share(rows, s[2], s[0], sms, true);
      return {flops / share, bytes};
    }
    case OpClass::memory:
      return {0, s[0]};
    default: {
      const double flops = 2 * s[0] * s[1] * s[2] * 1e-9;
      const double bytes = (s[0] * s[2] + s[1] * s[2] + s[0] * s[1]) * 2e-6;
      // Weight gradients have few tiles and split their sum instead.
      return {gradient ? flops : flops / busy_share(s[0], s[1], 1, sms, false), bytes};
    }
  }
}

std::array<double, 3> place_of(const StepOp& op) {
  const auto& s = op.sizes;
  const auto log = [](double value) { return std::log(std::max(1.0, value)); };
  switch (op.kind) {
    case OpClass::attention:
      return {1.5 * log(s[1]), 0.3 * log(s[0]), 0};
    case OpClass::grouped_gemm:
      return {log(s[1] / s[0]), log(s[2]), log(s[3])};
    case OpClass::memory:
      return {log(1e6 * s[0]), 0.7 * log(s[1]), 0};
    default:
      return {log(s[0]), log(s[1]), log(s[2])};
  }
}

// Solves A x = b by elimination; nothing where A is singular.
template <size_t N>
std::optional<std::array<double, N>> solve(std::array<std::array<double, N>, N> a, std::array<double, N> b,
                                           size_t n) {
  for (size_t i = 0; i < n; ++i) {
    size_t pivot = i;
    for (size_t r = i + 1; r < n; ++r)
      if (std::abs(a[r][i]) > std::abs(a[pivot][i])) pivot = r;
    if (std::abs(a[pivot][i]) < 1e-300) return {};
    std::swap(a[i], a[pivot]);
    std::swap(b[i], b[pivot]);
    for (size_t r = 0; r < n; ++r) {
      if (r == i) continue;
      const double factor = a[r][i] / a[i][i];
      for (size_t c = i; c < n; ++c) a[r][c] -= factor * a[i][c];
      b[r] -= factor * b[i];
    }
  }
  std::array<double, N> x = {};
  for (size_t i = 0; i < n; ++i) x[i] = b[i] / a[i][i];
  return x;
}

// Factors of the terms, none below 0, that make predicted over measured times near 1. Of all choices of terms
// the best counts; each term must pay for itself.
std::array<double, 3> fit_factors(const std::vector<std::array<double, 3>>& rows, bool arithmetic) {
  std::array<double, 3> best = {};
  double least = std::numeric_limits<double>::infinity();
  for (unsigned chosen = 1; chosen < 8; ++chosen) {
    if (arithmetic != ((chosen & 1) != 0)) continue;
    std::vector<size_t> terms;
    for (size_t i = 0; i < 3; ++i)
      if (chosen & (1U << i)) terms.push_back(i);
    std::array<std::array<double, 3>, 3> a = {};
    std::array<double, 3> b = {};
    for (const auto& row : rows)
      for (size_t i = 0; i < terms.size(); ++i) {
        for (size_t j = 0; j < terms.size(); ++j) a[i][j] += row[terms[i]] * row[terms[j]];
        b[i] += row[terms[i]];
      }
    for (size_t i = 0; i < terms.size(); ++i) a[i][i] += 1e-12;
    const auto x = solve(a, b, terms.size());
    if (!x || std::any_of(x->begin(), x->begin() + static_cast<std::ptrdiff_t>(terms.size()),
                          [](double value) { return value < 0; }))
      continue;
    double error = 0.002 * static_cast<double>(terms.size());
    for (const auto& row : rows) {
      double sum = -1;
      for (size_t i = 0; i < terms.size(); ++i) sum += (*x)[i] * row[terms[i]];
      error += sum * sum;
    }
    if (error >= least) continue;
    least = error;
    best = {};
    for (size_t i = 0; i < terms.size(); ++i) best[terms[i]] = (*x)[i];
  }
  return best;
}

// One, and how fast a step computes by each class, against what a GPU sustains. Power goes with that: an op
// of fp8 draws about half for an operation.
std::array<double, 5> rates_of(const std::vector<StepOp>& ops, const std::vector<double>& us) {
  std::array<double, 5> rates = {};
  double sum = 0;
  for (size_t i = 0; i < ops.size(); ++i) {
    const StepOp& op = ops[i];
    sum += op.count * us[i];
    if (!slows_with_clock(op.kind)) continue;
    const auto& s = op.sizes;
    const double flops = op.kind == OpClass::attention      ? s[0] * s[1] * s[2]
                         : op.kind == OpClass::grouped_gemm ? 2 * s[1] * s[2] * s[3]
                                                            : 2 * s[0] * s[1] * s[2];
    const double energy = op.family.find("fp8") != std::string::npos ? 0.5 : 1;
    rates[1 + static_cast<size_t>(op.kind)] += op.count * energy * flops / 700e6;
  }
  for (double& rate : rates) rate /= std::max(1e-9, sum);
  rates[0] = 1;
  return rates;
}

std::vector<double> measured_us(const MeasuredStep& step) {
  std::vector<double> us;
  for (const StepOp& op : step.ops) us.push_back(op.us);
  return us;
}

// Ops are timed in steps that events lengthen: together they take what the step alone took.
double scale_of(const MeasuredStep& step) { return step.us / std::max(1e-9, step.op_us); }

}  // namespace

OpPricer::OpPricer(StepDatabase database, int sms) : database_(std::move(database)), sms_(sms) { fit(kNone); }

double OpPricer::base(const Family& family, const StepOp& op) const {
  const auto [work, bytes] = work_of(op, sms_);
  return std::max(0.5, family.factors[0] * work + family.factors[1] * bytes + family.factors[2]);
}

void OpPricer::fit_families(size_t left_out, const std::vector<double>& clocks) {
  families_.clear();
  for (size_t s = 0; s < database_.steps.size(); ++s) {
    if (s == left_out) continue;
    const MeasuredStep& step = database_.steps[s];
    const double scale = scale_of(step);
    for (const StepOp& op : step.ops) {
      const double us = op.us * scale * (slows_with_clock(op.kind) ? std::exp(clocks[s]) : 1);
      families_[op.family].samples.push_back({op, place_of(op), us, 0, s});
    }
  }
  for (auto& [name, family] : families_) {
    std::vector<std::array<double, 3>> rows;
    for (const Sample& sample : family.samples) {
      const auto [work, bytes] = work_of(sample.op, sms_);
      rows.push_back({work / sample.us, bytes / sample.us, 1 / sample.us});
    }
    family.factors = fit_factors(rows, slows_with_clock(family.samples[0].op.kind));
    for (Sample& sample : family.samples) sample.deviation = std::log(sample.us / base(family, sample.op));
  }
}

std::optional<double> OpPricer::us(const StepOp& op, size_t without_step) const {
  const auto found = families_.find(op.family);
  if (found == families_.end()) return {};
  const Family& family = found->second;
  const std::array<double, 3> place = place_of(op);
  double weights = 1e-12, sum = 0;
  for (const Sample& sample : family.samples) {
    if (sample.step == without_step) continue;
    double distance = 0;
    for (size_t i = 0; i < place.size(); ++i)
      distance += (place[i] - sample.place[i]) * (place[i] - sample.place[i]);
    const double weight = std::exp(-distance / (2 * kReach * kReach));
    weights += weight;
    sum += weight * sample.deviation;
  }
  return base(family, op) * std::exp(sum / (weights + kNoDeviation));
}

std::optional<double> OpPricer::us(const StepOp& op) const { return us(op, kNone); }

void OpPricer::fit(size_t left_out) {
  const size_t steps = database_.steps.size();
  std::vector<double> clocks(steps, 0);
  // Families and clocks in turn: what all arithmetic ops of a step have in common is its clock.
  for (int round = 0; round < 12; ++round) {
    fit_families(left_out, clocks);
    std::vector<double> common(steps, 0);
    double mean = 0;
    for (size_t s = 0; s < steps; ++s) {
      if (s == left_out) continue;
      const MeasuredStep& step = database_.steps[s];
      double sum = 0, weights = 1e-9;
      const double scale = scale_of(step);
      for (const StepOp& op : step.ops) {
        if (!slows_with_clock(op.kind)) continue;
        const std::optional<double> expected = us(op, s);
        if (!expected) continue;
        const double weight = op.count * op.us;
        sum += weight * std::clamp(std::log(*expected / (op.us * scale)), -0.15, 0.15);
        weights += weight;
      }
      common[s] = sum / weights;
      mean += common[s] / static_cast<double>(steps - (left_out < steps));
    }
    for (size_t s = 0; s < steps; ++s) clocks[s] = 0.5 * (clocks[s] + common[s] - mean);
  }
  std::array<std::array<double, 5>, 5> a = {};
  std::array<double, 5> b = {};
  host_us_ = std::numeric_limits<double>::infinity();
  for (size_t s = 0; s < steps; ++s) {
    if (s == left_out) continue;
    const MeasuredStep& step = database_.steps[s];
    const std::array<double, 5> x = rates_of(step.ops, measured_us(step));
    for (size_t i = 0; i < 5; ++i) {
      for (size_t j = 0; j < 5; ++j) a[i][j] += x[i] * x[j];
      b[i] += x[i] * clocks[s];
    }
    double ops = 0;
    for (const StepOp& op : step.ops) ops += op.count;
    if (step.host_us > 0) host_us_ = std::min(host_us_, step.host_us / std::max(1.0, ops));
  }
  if (!std::isfinite(host_us_)) host_us_ = 0;
  for (size_t i = 1; i < 5; ++i) a[i][i] += 0.0002 * static_cast<double>(steps);
  clock_ = solve(a, b, 5).value_or(std::array<double, 5>{});
}

double OpPricer::clock_of(const std::vector<StepOp>& ops, const std::vector<double>& us) const {
  const std::array<double, 5> x = rates_of(ops, us);
  double clock = 0;
  for (size_t i = 0; i < 5; ++i) clock += clock_[i] * x[i];
  return std::clamp(clock, -0.2, 0.2);
}

StepPrice OpPricer::price(const std::vector<StepOp>& ops) const {
  StepPrice price;
  std::vector<double> at_mean, now(ops.size());
  double count = 0;
  std::vector<bool> known;
  for (const StepOp& op : ops) {
    const std::optional<double> measured = us(op);
    known.push_back(measured.has_value());
    const auto [work, bytes] = work_of(op, sms_);
    // Half of a large GPU's rates, and a launch.
    at_mean.push_back(measured.value_or(3 + std::max(work / 0.4, bytes / 2.5)));
    count += op.count;
  }
  // The mix depends on the clock in turn, but little.
  for (int round = 0; round < 4; ++round) {
    for (size_t i = 0; i < ops.size(); ++i)
      now[i] = at_mean[i] * (slows_with_clock(ops[i].kind) ? std::exp(-price.clock) : 1);
    price.clock = clock_of(ops, now);
  }
  for (size_t i = 0; i < ops.size(); ++i) {
    const double seconds = ops[i].count * now[i] * 1e-6;
    price.device += seconds;
    price.by_family[ops[i].family] += seconds;
    if (!known[i]) price.unknown += seconds;
  }
  price.unknown /= std::max(1e-12, price.device);
  price.host = count * host_us_ * 1e-6;
  price.seconds = std::max(price.device, price.host);
  return price;
}

std::optional<double> OpPricer::linear_seconds(LinearPass pass, bool fp8, double rows, double width_in,
                                               double width_out, double groups) const {
  constexpr const char* phases[] = {"forward", "backward", "weight gradient"};
  const bool gradient = pass == LinearPass::weight_gradient, forward = pass == LinearPass::forward;
  const std::string prefix = fmt::format("{}{}linear {} ", groups > 1 ? "grouped_" : "", fp8 ? "fp8_" : "",
                                         phases[static_cast<size_t>(pass)]);
  const auto found = families_.lower_bound(prefix);
  if (found == families_.end() || !found->first.starts_with(prefix)) return {};
  StepOp op{.family = found->first, .kind = found->second.samples[0].op.kind};
  const double n = forward ? width_out : width_in, k = forward ? width_in : width_out;
  if (groups > 1)
    op.sizes = gradient ? std::array{groups, rows * groups, width_out, width_in}
                        : std::array{groups, rows * groups, n, k};
  else
    op.sizes = gradient ? std::array{width_out, width_in, rows, 0.0} : std::array{rows, n, k, 0.0};
  const std::optional<double> measured = us(op);
  return measured ? std::optional(*measured * 1e-6) : std::nullopt;
}

std::optional<double> OpPricer::attention_seconds(bool backward, double queries, double context,
                                                  double dim) const {
  // Two GEMMs forward and five backward, of two operations for each key and element.
  StepOp op{.family = fmt::format("attention {} bf16 {:.0f}", backward ? "backward" : "forward", dim),
            .kind = OpClass::attention,
            .sizes = {queries, (backward ? 10 : 4) * context, dim, 0}};
  const std::optional<double> measured = us(op);
  return measured ? std::optional(*measured * 1e-6) : std::nullopt;
}

std::vector<double> OpPricer::held_out() const {
  std::vector<double> errors;
  for (size_t s = 0; s < database_.steps.size(); ++s) {
    OpPricer others(database_, sms_);
    others.fit(s);
    errors.push_back(others.price(database_.steps[s].ops).device * 1e6 / database_.steps[s].us - 1);
  }
  return errors;
}

}  // namespace megatron::autotune
