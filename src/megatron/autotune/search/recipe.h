#pragma once

#include <string>

#include "megatron/autotune/search/search.h"
#include "megatron/config/resolve/resolve.h"

namespace megatron::autotune {

// The plan as settings: {"model": {"tensor_model_parallel_size": 4, ...}, "train": {...}, "ddp": {...}}.
Json plan_settings(const ModelShape& model, const ParallelPlan& plan,
                   const std::vector<int>& stage_layers = {});

// What the user gave, but for sizes and switches that a plan decides: {"model": {"num_layers": 32, ...},
// ...}.
Json given_settings(const Resolved& resolved);

// A configuration file that `pretrain --config` runs: what was given, then the plan.
std::string recipe_text(const Json& given, const ModelShape& model, const Candidate& candidate,
                        std::string_view machine);

// Stages as pipeline_model_parallel_layout writes them: "Et*10|t*10|...|t*9,L".
std::string pipeline_layout_text(const ModelShape& model, const ParallelPlan& plan,
                                 const std::vector<int>& stage_layers = {});

}  // namespace megatron::autotune
