#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "megatron/autotune/cost/cost_model.h"

namespace megatron::autotune {

// What is to be trained, and what of a plan is already decided.
struct SearchRequest {
  CostInputs in;
  int64_t gbs = 1, seq = 4096;
  Precision precision = Precision::bf16;
  double expert_imbalance = 1;
  std::optional<int> tp, pp, vpp, cp, ep, etp;
  std::optional<int64_t> mbs;
  // Called now and then, where it is set, by one thread: parts of the search that are done, and plans.
  std::function<void(int64_t done, int64_t parts, int64_t plans)> progress;
  std::optional<ContextExchange> cp_exchange;
  std::optional<Schedule> schedule;
  std::optional<Recompute> recompute;
  std::vector<Precision> precisions;  // to choose from beside `precision`
  bool forward_only = false;
  int threads = 1;
  // GPUs that are down, each in another NVLink domain: plans leave out replicas, or these have fewer tensor
  // ranks.
  int lost_gpus = 0;
  // Mean tokens of a sample; 0: rows are full. Below `seq` rows are padded, or samples share rows of up to
  // `max_token_len` tokens (below `seq`: none do); gbs counts samples, and times are those of so many.
  int64_t mean_length = 0, max_token_len = 0;
};

// Rows of `seq` tokens that hold the samples of a batch, and the share of their tokens that is not padding.
struct PackedRows {
  int64_t rows = 1;
  double useful = 1;
};
PackedRows packed_rows(int64_t samples, int64_t mean_length, int64_t seq);

struct Candidate {
  ParallelPlan plan;
  Prediction prediction;
  double bytes = 0;                // on the fullest rank
  std::vector<int> stage_layers;   // of each stage, where layers differ; empty: as layer_split deals them
  std::optional<double> planned;   // bytes on the fullest rank of a step on shapes alone
  std::optional<double> measured;  // seconds of an iteration that was run
};

// What one part of the search found; parts are independent of each other.
struct SearchPart {
  std::vector<Candidate> best, front;
  int64_t plans = 0, fitting = 0;
  std::map<std::string, int64_t> refused;
};

struct SearchResult {
  std::vector<Candidate> best;   // fastest first, near-ties by fewer kinds of communication; no two alike
  std::vector<Candidate> front;  // no other is both faster and smaller; fastest first
  int64_t plans = 0;             // legal ones
  int64_t fitting = 0;
  std::map<std::string, int64_t> refused;  // by reason
  double seconds = 0;                      // that the search took
  int resumed = 0;                         // parts that were taken from an earlier search
};

// Where the parts of a search are kept, so that one that was stopped goes on.
struct SearchMemory {
  std::map<std::string, SearchPart> parts;                              // by name
  std::function<void(const std::string&, const SearchPart&)> finished;  // called by one thread at a time
};

// The times of a plan whose batch holds other than the wanted samples become those of as many.
void scale_to_samples(const SearchRequest& request, Candidate& candidate);

// Every legal plan, priced; those that do not fit are counted.
SearchResult search(const SearchRequest& request, const SearchMemory& memory = {});

// Whether a plan can be run at all: a reason, or "" for a legal one.
std::string_view illegal(const ModelShape& model, const Cluster& cluster, const ParallelPlan& plan);

// Sets of modules whose activations are made again, each with those before it: what saves a byte at the least
// time comes first.
std::vector<uint8_t> recompute_sets(const CostInputs& in, const ParallelPlan& plan);

}  // namespace megatron::autotune
