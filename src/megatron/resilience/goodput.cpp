#include "megatron/resilience/goodput.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <queue>
#include <random>

namespace megatron {
namespace {

constexpr double kTenthPercent = 1e-3, kSecondsPerDay = 86400;

int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

// Attention's part of a layer follows the heads of its fullest rank, the MLP's its columns.
double reduced_slowdown(const ResilienceModel& model) {
  const auto h = static_cast<double>(model.hidden), s = static_cast<double>(model.length);
  const double attention = 8 * h * h + 2 * s * h, mlp = 4 * h * static_cast<double>(model.ffn);
  const auto growth = [&](int64_t units) {
    return static_cast<double>(ceil_divide(units, model.reduced)) /
           static_cast<double>(ceil_divide(units, model.domain));
  };
  return (attention * growth(model.heads) + mlp * growth(model.ffn)) / (attention + mlp);
}

int64_t reduced_batch(const ResilienceModel& model) {
  const double time = static_cast<double>(model.batch) + model.bubble;
  return std::max<int64_t>(0, static_cast<int64_t>(time / reduced_slowdown(model) - model.bubble));
}

double expected_affected(const ResilienceModel& model, double failed_share) {
  const auto domains = static_cast<double>(model.domains());
  return domains * (1 - std::pow(1 - 1 / domains, failed_share * static_cast<double>(model.gpus)));
}

double loss_of_dropping(const ResilienceModel& model, double affected) {
  return affected / static_cast<double>(model.domains());
}

double loss_of_ntp(const ResilienceModel& model, double affected) {
  if (affected <= 0) return 0;
  const double reduced = std::ceil(affected / static_cast<double>(model.domains_per_replica));
  const auto lost = static_cast<double>(model.batch - reduced_batch(model));
  const double share = reduced * lost / static_cast<double>(model.replicas() * model.batch);
  return 1 - (1 - share) / (1 + model.ntp_overhead);
}

int64_t spares_of_dropping(const ResilienceModel& /*model*/, int64_t affected) { return affected; }

int64_t spares_of_ntp(const ResilienceModel& model, int64_t affected) {
  const int64_t reduced = ceil_divide(affected, model.domains_per_replica);
  const int64_t missing = reduced * (model.batch - reduced_batch(model));
  return ceil_divide(missing, model.batch) * model.domains_per_replica;
}

double recovery_goodput(double seconds_between_faults, double seconds_lost) {
  return std::max(0.0, 1 - seconds_lost / seconds_between_faults);
}

ResilienceReport simulate_resilience(const ResilienceModel& model) {
  std::mt19937_64 random(model.seed);
  const double rate = model.failures_per_gpu_day * model.rate_factor * static_cast<double>(model.gpus);
  std::exponential_distribution<double> gap(rate);
  std::uniform_real_distribution<double> share(0, 1),
      repair(model.hardware_days_low, model.hardware_days_high);
  std::uniform_int_distribution<int64_t> place(0, model.gpus - 1);

  struct Repair {
    double when;
    int64_t gpu;
    bool operator>(const Repair& other) const { return when > other.when; }
  };
  std::priority_queue<Repair, std::vector<Repair>, std::greater<>> repairs;
  std::map<int64_t, int64_t> failed_in;  // by domain
  std::map<int64_t, bool> failed;        // GPUs
  ResilienceReport report;
  double now = 0, next_failure = gap(random);
  const auto all = static_cast<double>(model.gpus);
  while (now < model.days) {
    const double next =
        std::min({next_failure, repairs.empty() ? model.days : repairs.top().when, model.days});
    const double span = (next - now) / model.days, out = static_cast<double>(failed.size()) / all;
    const auto affected = static_cast<int64_t>(failed_in.size());
    const double dropping = loss_of_dropping(model, static_cast<double>(affected)),
                 ntp = loss_of_ntp(model, static_cast<double>(affected));
    report.mean_failed_share += span * out;
    report.availability += span * (1 - static_cast<double>(affected) / static_cast<double>(model.domains()));
    report.dropping_loss += span * dropping;
    report.ntp_loss += span * ntp;
    if (out > kTenthPercent) report.time_above_tenth_percent += span;
    report.peak_failed_share = std::max(report.peak_failed_share, out);
    report.peak_affected = std::max(report.peak_affected, affected);
    report.dropping_peak_loss = std::max(report.dropping_peak_loss, dropping);
    report.ntp_peak_loss = std::max(report.ntp_peak_loss, ntp);
    now = next;
    if (now >= model.days) break;
    if (!repairs.empty() && repairs.top().when == now) {
      const int64_t gpu = repairs.top().gpu, in = gpu / model.domain;
      repairs.pop();
      failed.erase(gpu);
      if (--failed_in[in] == 0) failed_in.erase(in);
      continue;
    }
    next_failure = now + gap(random);
    ++report.failures;
    const int64_t gpu = place(random);
    const double days = share(random) < model.hardware_share ? repair(random) : model.software_days;
    if (!failed.emplace(gpu, true).second) continue;  // it was out already
    ++failed_in[gpu / model.domain];
    repairs.push({now + days, gpu});
  }
  report.faults_per_day = static_cast<double>(report.failures) / model.days;
  report.dropping_spares = spares_of_dropping(model, report.peak_affected);
  report.ntp_spares = spares_of_ntp(model, report.peak_affected);
  const double between = kSecondsPerDay / std::max(report.faults_per_day, 1e-9);
  const double death = model.detect_seconds + model.recover_seconds + model.iteration_seconds,
               hang = model.hang_seconds + model.recover_seconds + model.iteration_seconds;
  report.deaths_goodput = recovery_goodput(between, (1 - model.hang_share) * death);
  report.hangs_goodput = recovery_goodput(between, model.hang_share * hang);
  const double recovered = report.deaths_goodput + report.hangs_goodput - 1;
  report.dropping_goodput = (1 - report.dropping_loss) * recovered;
  report.ntp_goodput = (1 - report.ntp_loss) * recovered;
  return report;
}

}  // namespace megatron
