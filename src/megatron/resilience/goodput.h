#pragma once

#include <cstdint>
#include <vector>

namespace megatron {

// A cluster whose GPUs fail, the model that it trains and how long recovery takes. The defaults are the NTP
// paper's simulated system, with the failure rate of Llama 3's training run.
struct ResilienceModel {
  int64_t gpus = 32768;
  int64_t domain = 32;              // GPUs that a fast network joins; also the tensor-parallel size
  int64_t domains_per_replica = 8;  // pipeline stages
  int64_t reduced = 30;             // tensor-parallel size of a domain that has lost GPUs
  int64_t batch = 8;                // sequences of a replica in an iteration

  // The model, for the work that a rank of a smaller domain gets.
  int64_t hidden = 20480, heads = 128, ffn = 81920, length = 16384;
  double bubble = 0;            // of the pipeline, in micro-batches: stages - 1 without interleaving
  double ntp_overhead = 0.012;  // of an iteration of healthy replicas, while some are reduced

  double failures_per_gpu_day = 419.0 / (54 * 16384);  // Llama 3: 419 in 54 days on 16,384 GPUs
  double rate_factor = 1;
  double hardware_share = 0.78, hardware_days_low = 3, hardware_days_high = 5, software_days = 0.125;
  double days = 15;
  uint64_t seed = 1234;

  // What a fault costs everybody.
  double detect_seconds = 0.1, recover_seconds = 1.0;  // a process that dies
  double hang_share = 0.05, hang_seconds = 15;         // of faults; until a hang is noticed
  double iteration_seconds = 2.63;                     // that are computed again

  int64_t domains() const { return gpus / domain; }
  int64_t replicas() const { return domains() / domains_per_replica; }
};

// Sequences that a replica of reduced domains gets, so that it is as fast as the others.
int64_t reduced_batch(const ResilienceModel& model);
// How much longer one micro-batch takes in a reduced domain.
double reduced_slowdown(const ResilienceModel& model);

// Shares of the healthy cluster's throughput that are lost while this many domains have failed GPUs.
double loss_of_dropping(const ResilienceModel& model, double affected_domains);
double loss_of_ntp(const ResilienceModel& model, double affected_domains);
// Domains that are affected when this share of GPUs has failed, at random places.
double expected_affected(const ResilienceModel& model, double failed_share);

// Further domains that keep the global batch whole with so many affected ones.
int64_t spares_of_dropping(const ResilienceModel& model, int64_t affected_domains);
int64_t spares_of_ntp(const ResilienceModel& model, int64_t affected_domains);

// What a trace of failures and repairs does to the cluster.
struct ResilienceReport {
  int64_t failures = 0;
  double faults_per_day = 0;
  double mean_failed_share = 0, peak_failed_share = 0;
  double time_above_tenth_percent = 0;     // share of the time with more than 0.1 % of GPUs failed
  int64_t peak_affected = 0;               // domains
  double availability = 0;                 // mean share of whole domains
  double dropping_loss = 0, ntp_loss = 0;  // means over the trace
  double dropping_peak_loss = 0, ntp_peak_loss = 0;
  int64_t dropping_spares = 0, ntp_spares = 0;
  double deaths_goodput = 0, hangs_goodput = 0;  // of the time between faults, for recovery alone
  double dropping_goodput = 0, ntp_goodput = 0;  // both kinds of loss together
};
ResilienceReport simulate_resilience(const ResilienceModel& model);

// The share of time that is not lost to recovery with one fault per this many seconds.
double recovery_goodput(double seconds_between_faults, double seconds_lost);

}  // namespace megatron
