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
  std::function<void(int64_t plans)> progress;  // called now and then, where it is set
};

struct Candidate {
  ParallelPlan plan;
  Prediction prediction;
  double bytes = 0;  // on the fullest rank
};

struct SearchResult {
  std::vector<Candidate> best;   // fastest first, near-ties by fewer kinds of communication; no two alike
  std::vector<Candidate> front;  // no other is both faster and smaller; fastest first
  int64_t plans = 0;             // legal ones
  int64_t fitting = 0;
  std::map<std::string, int64_t> refused;  // by reason
  double seconds = 0;                      // that the search took
};

// Every legal plan, priced; those that do not fit are counted.
SearchResult search(const SearchRequest& request);

// Whether a plan can be run at all: a reason, or "" for a legal one.
std::string_view illegal(const ModelShape& model, const Cluster& cluster, const ParallelPlan& plan);

}  // namespace megatron::autotune
