#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/parallel/rank_grid.h"

namespace megatron {

// Every kind of process group. The e-axes belong to the expert grid, which factorises the same ranks a second
// time.
enum class Axis {
  gtp,             // weights sharded beyond tp and gathered again at use
  dp_cp,           // data parallel, context ranks included: where dense gradients are summed
  intra_dp_cp,     // one distributed-optimizer instance of dp_cp
  hybrid_dp_cp,    // slices of dp_cp of 2, 4, … ranks, for a context size chosen per sample
  dp,              // data parallel
  gtp_dp,          // dp over gtp as well
  gtp_dp_cp,       // dp_cp over gtp as well
  cp,              // context parallel
  cp_level,        // the levels of a hierarchical cp group
  mp,              // tensor × pipeline: one whole model
  tp,              // tensor parallel
  pp,              // pipeline parallel
  embd,            // first and last stage: tied embeddings
  pos_embd,        // first stage: position embeddings
  tp_dp_cp,        // everything but the pipeline
  tp_dp,           // tensor × data
  tp_cp,           // tensor × context
  egtp,            // gtp of the expert grid
  ep,              // expert parallel
  etp,             // tensor parallel inside experts
  etp_ep,          // expert tensor × expert
  etp_ep_pp,       // … × pipeline
  etp_ep_egtp_pp,  // … × egtp
  edp,             // expert data parallel: where expert gradients are summed
  intra_edp,       // one distributed-optimizer instance of edp
  inter_edp,       // the same shard across the instances
  dist_opt,        // all ranks of one distributed-optimizer instance
};

std::string_view axis_name(Axis axis);         // "dp-cp"
std::string_view axis_description(Axis axis);  // "DATA_PARALLEL_GROUP_WITH_CP"
const std::vector<Axis>& all_axes();           // in creation sequence

inline constexpr std::string_view kDefaultRankOrder = "tp-cp-ep-dp-pp";

// Slots of tensor-parallel groups that take no part: lost, or idle.
struct InactiveSlots {
  int dp = 0, cp = -1, pp = -1;  // whose; -1: of every context slice, of every stage
  std::vector<int> slots;
  bool operator==(const InactiveSlots&) const = default;
};

// How the ranks are divided. dp and edp follow from the world size.
struct ParallelSizes {
  int world = 1;
  int tp = 1;
  int pp = 1;
  int cp = 1;
  int ep = 1;
  std::optional<int> etp;  // tp where not given
  int gtp = 1;
  int egtp = 1;
  int optimizer_instances = 1;
  std::vector<int> cp_levels;  // sizes of a hierarchical cp split, innermost first
  bool hybrid_cp = false;
  std::string order{kDefaultRankOrder};
  int rank_offset = 0;
  // Pipeline ranks with a copy of the word embeddings; empty: the first and the last.
  std::vector<int> embedding_stages;
  // Slots of the `world` ranks that are lost; replicas may have tensor-parallel groups of different sizes
  // then, tp at most.
  std::vector<InactiveSlots> inactive = {};
  // The slot of each rank, ascending, where processes of a run are gone and inactive slots have no rank;
  // empty: rank i has slot i.
  std::vector<int> slot_of_rank = {};

  int expert_tp() const { return etp.value_or(tp); }
  int dp() const { return world / (tp * pp * cp * gtp); }
  int edp() const { return world / (expert_tp() * ep * pp * egtp); }
};

// Everything that is wrong with a division, each with advice; empty where it is sound.
std::vector<std::string> parallel_problems(const ParallelSizes& sizes);
void check_parallel(const ParallelSizes& sizes);  // throws a ConfigError with all problems

struct GridSizes {
  int tp = 1;
  int ep = 1;
  int dp = 1;
  int pp = 1;
  int cp = 1;
  int gtp = 1;
};
// gtp stands right after the axis `gtp_after` where the order names it, else after tp.
RankGrid parallel_grid(const GridSizes& sizes, std::string_view order = kDefaultRankOrder,
                       int rank_offset = 0, std::string_view gtp_after = "tp");
RankGrid dense_grid(const ParallelSizes& sizes);
RankGrid expert_grid(const ParallelSizes& sizes);

// The ranks whose embedding weights must agree, of one pipeline; `stages`: those that hold them, the first
// and the last where empty.
std::vector<int> embedding_ranks(const std::vector<int>& pipeline, const std::vector<int>& stages = {});
std::vector<int> position_embedding_ranks(const std::vector<int>& pipeline);

struct GroupRanks {
  Axis axis;
  int level = 0;  // of cp_level; of hybrid_dp_cp: log2(size) - 1
  std::vector<int> ranks;
};

// Every group of a division in the sequence in which all ranks must create them. Axes that coincide with
// another one (gtp_dp with dp where gtp is 1) are not listed: see alias().
std::vector<GroupRanks> parallel_groups(const ParallelSizes& sizes);

// The axis under which the groups of `axis` are listed: itself, or the one that it coincides with.
Axis alias(Axis axis, const ParallelSizes& sizes);

}  // namespace megatron
