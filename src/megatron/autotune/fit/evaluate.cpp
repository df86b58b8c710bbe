#include "megatron/autotune/fit/evaluate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace megatron::autotune {
namespace {

using Rows = std::vector<const TableRow*>;

// SplitMix64: the same draws on every machine.
uint64_t next_random(uint64_t& state) {
  uint64_t z = state += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

struct Split {
  Rows fit, judge;
};

// Half of the configurations of each set, so that a draw does not leave one without rows.
Split split_rows(const Rows& rows, uint64_t& state) {
  std::map<std::string, std::map<std::string, Rows>> sets;
  for (const TableRow* row : rows) sets[row->set][row->configuration].push_back(row);
  Split split;
  for (auto& [set, configurations] : sets) {
    std::vector<const Rows*> order;
    for (const auto& [name, members] : configurations) order.push_back(&members);
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[next_random(state) % i]);
    // An odd one goes to either side in turn.
    const size_t half = (order.size() + next_random(state) % 2) / 2;
    for (size_t i = 0; i < order.size(); ++i)
      for (const TableRow* row : *order[i]) (i < half ? split.fit : split.judge).push_back(row);
  }
  return split;
}

double relative_error(const TableRow& row, const Calibration& calibration) {
  return row.predicted(calibration) / row.measured - 1;
}

std::string mfu_class(const TableRow& row) {
  return (row.moe ? "moe " : "dense ") + std::string(row.plan.fp8() ? "8" : "16");
}

// Time by one share of the peak per class: what any model has to beat.
std::map<std::string, double> constant_mfu(const Rows& rows) {
  std::map<std::string, std::pair<double, int>> sums;
  for (const TableRow* row : rows) {
    if (!row->throughput) continue;
    auto& [sum, count] = sums[mfu_class(*row)];
    sum += std::log(row->measured * row->model->flops_per_token(row->plan.seq));
    ++count;
  }
  std::map<std::string, double> result;
  for (const auto& [name, entry] : sums) result[name] = std::exp(entry.first / entry.second);
  return result;
}

void merge(std::map<std::string, std::vector<double>>& errors, std::map<std::string, ErrorSummary>& out) {
  for (auto& [set, values] : errors) out[set] = summarize(std::move(values));
}

}  // namespace

ErrorSummary summarize(std::vector<double> errors) {
  ErrorSummary s;
  s.count = static_cast<int>(errors.size());
  if (errors.empty()) return s;
  s.bias = std::accumulate(errors.begin(), errors.end(), 0.0) / s.count;
  for (double& e : errors) e = std::abs(e);
  std::sort(errors.begin(), errors.end());
  const auto at = [&](double q) {
    const double place = q * (s.count - 1);
    const auto i = static_cast<size_t>(place);
    const double next = errors[std::min(i + 1, errors.size() - 1)];
    return errors[i] + (place - static_cast<double>(i)) * (next - errors[i]);
  };
  s.median = at(0.5);
  s.p95 = at(0.95);
  s.max = errors.back();
  s.mean = std::accumulate(errors.begin(), errors.end(), 0.0) / s.count;
  return s;
}

CostConstants prior_constants(const Table& table) {
  return table.published ? CostConstants{} : a100_constants();
}

std::span<const FittedConstant> free_constants(const Table& table) {
  return table.published ? published_constants() : measured_constants();
}

Evaluation evaluate(const Table& table, const Calibration& given, int draws, uint64_t seed) {
  const CostConstants prior = prior_constants(table);
  const std::span<const FittedConstant> free = free_constants(table);
  Rows judged, others;
  for (const TableRow& row : table.rows) {
    if (!row.excluded.empty() || row.measured <= 0) continue;
    (row.fitted ? judged : others).push_back(&row);
  }
  Evaluation result;
  const bool layers = !table.published;
  result.calibration = fit_constants(judged, prior, free, layers);
  std::map<std::string, std::vector<double>> fitted, shipped, held_out, baseline;
  for (const TableRow* row : judged) fitted[row->set].push_back(relative_error(*row, result.calibration));
  for (const Rows* rows : {&judged, &others})
    for (const TableRow* row : *rows) shipped[row->set].push_back(relative_error(*row, given));
  if (table.published) result.ordering = ordering_of(judged, result.calibration);
  merge(fitted, result.fitted);
  merge(shipped, result.shipped);
  std::vector<double> memory;
  for (const TableRow& row : table.rows) {
    if (row.memory_gib <= 0) continue;
    memory.push_back(memory_use(row.inputs(given), row.plan).total() / 1073741824.0 / row.memory_gib - 1);
    result.memory_lowest = std::min(result.memory_lowest, memory.back());
  }
  result.memory = summarize(std::move(memory));

  result.low.assign(free.size(), 1e300);
  result.high.assign(free.size(), 0);
  uint64_t state = seed;
  double inside = 0, rows = 0, loss = 0;
  for (int draw = 0; draw < draws; ++draw) {
    const Split split = split_rows(judged, state);
    const Calibration c = fit_constants(split.fit, prior, free, layers);
    for (size_t i = 0; i < free.size(); ++i) {
      result.low[i] = std::min(result.low[i], c.constants.*free[i].member);
      result.high[i] = std::max(result.high[i], c.constants.*free[i].member);
    }
    const std::map<std::string, double> mfu = constant_mfu(split.fit);
    for (const TableRow* row : split.judge) {
      const double error = relative_error(*row, c);
      held_out[row->set].push_back(error);
      inside += std::abs(error) <= predict(row->inputs(c), row->plan).uncertainty;
      rows += 1;
      if (const auto rate = mfu.find(mfu_class(*row)); rate != mfu.end())
        baseline[row->set].push_back(
            rate->second / row->model->flops_per_token(row->plan.seq) / row->measured - 1);
    }
    for (const RankedGroup& group : rank_groups(split.judge, c)) {
      loss += group.loss;
      result.worst_loss = std::max(result.worst_loss, group.loss);
      ++result.groups;
    }
  }
  merge(held_out, result.held_out);
  merge(baseline, result.baseline);
  if (rows > 0) result.inside = inside / rows;
  if (result.groups > 0) result.loss = loss / result.groups;
  return result;
}

std::vector<RankedGroup> rank_groups(std::vector<const TableRow*> rows, const Calibration& calibration) {
  std::map<std::string, Rows> groups;
  for (const TableRow* row : rows) groups[row->group].push_back(row);
  std::vector<RankedGroup> result;
  for (auto& [name, members] : groups) {
    std::vector<std::pair<double, const TableRow*>> order;
    bool plans_differ = false;
    for (const TableRow* row : members) {
      const double figure = row->predicted(calibration);
      order.emplace_back(row->throughput ? -figure : figure, row);
      plans_differ |= row->configuration != members[0]->configuration;
    }
    if (!plans_differ) continue;
    std::stable_sort(order.begin(), order.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    RankedGroup group{name, {}, 0};
    double best = order[0].second->measured;
    for (const auto& [figure, row] : order) {
      group.order.push_back(row);
      best = row->throughput ? std::max(best, row->measured) : std::min(best, row->measured);
    }
    const double first = order[0].second->measured;
    group.loss = order[0].second->throughput ? 1 - first / best : first / best - 1;
    result.push_back(std::move(group));
  }
  return result;
}

}  // namespace megatron::autotune
