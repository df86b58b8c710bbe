#pragma once

#include <string>
#include <vector>

#include "megatron/autotune/search/search.h"

namespace megatron::autotune {

// A plan or machine that differs in one thing.
struct WhatIf {
  std::string change;  // "tp 8", "twice the NIC"
  double seconds = 0;
  bool fits = true;
  bool machine = false;  // the machine differs, not the plan
};

// Every neighbour of a plan, the fastest first.
std::vector<WhatIf> what_if(const CostInputs& in, const ParallelPlan& plan);

// What the first plan gains and loses against another, the largest part first: "bubble -120 ms, TP +30 ms".
std::string why_faster(const Prediction& first, const Prediction& other);

// The parts of an iteration by name, in seconds.
std::vector<std::pair<std::string_view, double>> parts_of(const Breakdown& breakdown);

}  // namespace megatron::autotune
