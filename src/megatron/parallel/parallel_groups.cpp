#include "megatron/parallel/parallel_groups.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "megatron/base/error.h"
#include "megatron/parallel/replica_layout.h"

namespace megatron {
namespace {

struct AxisRow {
  Axis axis;
  std::string_view name;
  std::string_view description;
};

constexpr AxisRow kAxes[] = {
    {Axis::gtp, "gtp", "GTP_WEIGHT_REMAT_GROUP"},
    {Axis::dp_cp, "dp-cp", "DATA_PARALLEL_GROUP_WITH_CP"},
    {Axis::intra_dp_cp, "intra-dp-cp", "INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP"},
    {Axis::hybrid_dp_cp, "hybrid-dp-cp", "HYBRID_DP_CP_GROUP"},
    {Axis::dp, "dp", "DATA_PARALLEL_GROUP"},
    {Axis::gtp_dp, "gtp-dp", "DATA_PARALLEL_GROUP_WITH_GTP_REMAT"},
    {Axis::gtp_dp_cp, "gtp-dp-cp", "DATA_PARALLEL_GROUP_WITH_CP_WITH_GTP_REMAT"},
    {Axis::cp, "cp", "CONTEXT_PARALLEL_GROUP"},
    {Axis::cp_level, "cp-level", "HIERARCHICAL_CONTEXT_PARALLEL_GROUP"},
    {Axis::mp, "mp", "MODEL_PARALLEL_GROUP"},
    {Axis::tp, "tp", "TENSOR_MODEL_PARALLEL_GROUP"},
    {Axis::pp, "pp", "PIPELINE_MODEL_PARALLEL_GROUP"},
    {Axis::embd, "embd", "EMBEDDING_GROUP"},
    {Axis::pos_embd, "pos-embd", "POSITION_EMBEDDING_GROUP"},
    {Axis::tp_dp_cp, "tp-dp-cp", "TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP"},
    {Axis::tp_dp, "tp-dp", "TENSOR_AND_DATA_PARALLEL_GROUP"},
    {Axis::tp_cp, "tp-cp", "TENSOR_AND_CONTEXT_PARALLEL_GROUP"},
    {Axis::egtp, "egtp", "EXPERT_GTP_WEIGHT_REMAT_GROUP"},
    {Axis::ep, "ep", "EXPERT_MODEL_PARALLEL_GROUP"},
    {Axis::etp, "etp", "EXPERT_TENSOR_PARALLEL_GROUP"},
    {Axis::etp_ep, "etp-ep", "EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP"},
    {Axis::etp_ep_pp, "etp-ep-pp", "EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP"},
    {Axis::etp_ep_egtp_pp, "etp-ep-egtp-pp", "EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP_WITH_EGTP"},
    {Axis::edp, "edp", "EXPERT_DATA_PARALLEL_GROUP"},
    {Axis::intra_edp, "intra-edp", "INTRA_PARTIAL_EXPERT_DATA_PARALLEL_GROUP"},
    {Axis::inter_edp, "inter-edp", "INTER_PARTIAL_EXPERT_DATA_PARALLEL_GROUP"},
    {Axis::dist_opt, "dist-opt", "INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP"},
};

const AxisRow& row(Axis axis) { return kAxes[static_cast<size_t>(axis)]; }

// Consecutive runs of `length` ranks; the last may be shorter.
RankLists slices(const std::vector<int>& ranks, size_t length) {
  RankLists lists;
  for (size_t first = 0; first < ranks.size(); first += length) {
    const size_t last = std::min(first + length, ranks.size());
    lists.emplace_back(ranks.data() + first, ranks.data() + last);
  }
  return lists;
}

// Problems of one grid's sizes against the world; true where the grid can be built.
bool check_grid(std::vector<std::string>& problems, const ParallelSizes& sizes, std::string_view what,
                std::string_view names, int64_t product) {
  if (sizes.world % product == 0) return true;
  problems.push_back(fmt::format(
      "world size {} is not divisible by {} = {} ({}): use a multiple of {} ranks, or smaller sizes",
      sizes.world, names, product, what, product));
  return false;
}

class GroupLister {
 public:
  explicit GroupLister(const ParallelSizes& sizes)
      : sizes_(sizes), dense_(dense_grid(sizes)), expert_(expert_grid(sizes)) {}

  std::vector<GroupRanks> list() && {
    list_data();
    list_model();
    list_experts();
    list_optimizer_instances();
    return std::move(groups_);
  }

 private:
  void add(Axis axis, const RankLists& lists, int level = 0) {
    for (const auto& ranks : lists) groups_.push_back({axis, level, ranks});
  }

  void list_data() {
    add(Axis::gtp, dense_.groups("gtp"));
    const RankLists dp_cp = dense_.groups("dp-cp");
    add(Axis::dp_cp, dp_cp);
    const int instances = sizes_.optimizer_instances;
    for (const auto& ranks : dp_cp)
      if (instances > 1) add(Axis::intra_dp_cp, slices(ranks, ranks.size() / static_cast<size_t>(instances)));
    if (sizes_.hybrid_cp) list_hybrid_cp(dp_cp);
    add(Axis::dp, dense_.groups("dp"));
    if (sizes_.gtp > 1) {
      add(Axis::gtp_dp, dense_.groups("gtp-dp"));
      add(Axis::gtp_dp_cp, dense_.groups("gtp-dp-cp"));
    }
    const RankLists cp = dense_.groups("cp");
    add(Axis::cp, cp);
    if (sizes_.cp_levels.empty()) return;
    for (const auto& ranks : cp) {
      const std::vector<RankLists> levels = hierarchical_groups(ranks, sizes_.cp_levels);
      for (size_t level = 0; level < levels.size(); ++level)
        add(Axis::cp_level, levels[level], static_cast<int>(level));
    }
  }

  void list_hybrid_cp(const RankLists& dp_cp) {
    for (const auto& ranks : dp_cp)
      for (size_t size = 2, level = 0; size * 2 <= ranks.size(); size *= 2, ++level)
        add(Axis::hybrid_dp_cp, slices(ranks, size), static_cast<int>(level));
  }

  void list_model() {
    add(Axis::mp, dense_.groups("tp-gtp-pp"));
    add(Axis::tp, dense_.groups("tp"));
    for (const auto& pipeline : dense_.groups("pp")) {
      add(Axis::pp, {pipeline});
      add(Axis::embd, {embedding_ranks(pipeline, sizes_.embedding_stages)});
      add(Axis::pos_embd, {position_embedding_ranks(pipeline)});
    }
    add(Axis::tp_dp_cp, dense_.groups("tp-gtp-dp-cp"));
    add(Axis::tp_dp, dense_.groups("tp-gtp-dp"));
    add(Axis::tp_cp, dense_.groups("tp-cp"));
  }

  void list_experts() {
    add(Axis::egtp, expert_.groups("gtp"));
    add(Axis::ep, expert_.groups("ep"));
    add(Axis::etp, expert_.groups("tp"));
    add(Axis::etp_ep, expert_.groups("tp-ep"));
    add(Axis::etp_ep_pp, expert_.groups("tp-ep-pp"));
    add(Axis::etp_ep_egtp_pp, expert_.groups("tp-ep-gtp-pp"));
    for (const auto& ranks : expert_.groups("dp")) {
      add(Axis::edp, {ranks});
      if (sizes_.optimizer_instances == 1) continue;
      const int instances = sizes_.optimizer_instances;
      const auto levels = hierarchical_groups(ranks, {sizes_.edp() / instances, instances});
      add(Axis::intra_edp, levels[0]);
      add(Axis::inter_edp, levels[1]);
    }
  }

  // An instance is a run of whole expert models.
  void list_optimizer_instances() {
    const RankLists models = expert_.groups("tp-ep-pp");
    const size_t models_each = models.size() / static_cast<size_t>(sizes_.optimizer_instances);
    for (size_t first = 0; first < models.size(); first += models_each) {
      std::vector<int> ranks;
      for (size_t i = first; i < first + models_each; ++i)
        ranks.insert(ranks.end(), models[i].begin(), models[i].end());
      if (sizes_.gtp > 1 || sizes_.egtp > 1) std::sort(ranks.begin(), ranks.end());
      add(Axis::dist_opt, {ranks});
    }
  }

  const ParallelSizes& sizes_;
  RankGrid dense_, expert_;
  std::vector<GroupRanks> groups_;
};

}  // namespace

std::string_view axis_name(Axis axis) { return row(axis).name; }
std::string_view axis_description(Axis axis) { return row(axis).description; }

const std::vector<Axis>& all_axes() {
  static const std::vector<Axis> axes = [] {
    std::vector<Axis> list;
    for (const AxisRow& row : kAxes) list.push_back(row.axis);
    return list;
  }();
  return axes;
}

RankGrid parallel_grid(const GridSizes& sizes, std::string_view order, int rank_offset,
                       std::string_view gtp_after) {
  if (sizes.ep > 1 && sizes.cp > 1)
    throw ConfigError(fmt::format(
        "rank grid: ep={} and cp={} in one grid: cp belongs to the dense grid, ep to the expert grid",
        sizes.ep, sizes.cp));
  std::vector<std::string> names = split_names(order);
  auto place = std::find(names.begin(), names.end(), gtp_after);
  if (place == names.end()) place = std::find(names.begin(), names.end(), "tp");
  if (place != names.end()) names.insert(place + 1, "gtp");
  return RankGrid::ordered({{"tp", sizes.tp},
                            {"ep", sizes.ep},
                            {"dp", sizes.dp},
                            {"pp", sizes.pp},
                            {"cp", sizes.cp},
                            {"gtp", sizes.gtp}},
                           fmt::format("{}", fmt::join(names, "-")), rank_offset);
}

RankGrid dense_grid(const ParallelSizes& s) {
  return parallel_grid({s.tp, 1, s.dp(), s.pp, s.cp, s.gtp}, s.order, s.rank_offset, "tp");
}

RankGrid expert_grid(const ParallelSizes& s) {
  return parallel_grid({s.expert_tp(), s.ep, s.edp(), s.pp, 1, s.egtp}, s.order, s.rank_offset, "ep");
}

std::vector<int> embedding_ranks(const std::vector<int>& pipeline, const std::vector<int>& stages) {
  if (pipeline.size() == 1) return pipeline;
  if (stages.empty()) return {pipeline.front(), pipeline.back()};
  std::vector<int> ranks;
  for (int stage : stages) ranks.push_back(pipeline.at(static_cast<size_t>(stage)));
  return ranks;
}

std::vector<int> position_embedding_ranks(const std::vector<int>& pipeline) { return {pipeline.front()}; }

std::vector<std::string> parallel_problems(const ParallelSizes& s) {
  std::vector<std::string> problems;
  const std::pair<std::string_view, int> positive[] = {{"world size", s.world},
                                                       {"tp", s.tp},
                                                       {"pp", s.pp},
                                                       {"cp", s.cp},
                                                       {"ep", s.ep},
                                                       {"etp", s.expert_tp()},
                                                       {"gtp", s.gtp},
                                                       {"egtp", s.egtp},
                                                       {"optimizer instances", s.optimizer_instances}};
  for (auto [name, size] : positive)
    if (size < 1 || size > 1 << 20)
      problems.push_back(fmt::format("{} is {}: use 1 to {}", name, size, 1 << 20));
  for (int size : s.cp_levels)
    if (size < 1) problems.push_back(fmt::format("a cp level has size {}: sizes start at 1", size));
  if (!problems.empty()) return problems;

  const auto product = [](auto... sizes) {
    int64_t result = 1;
    for (int64_t size : {static_cast<int64_t>(sizes)...})
      result = std::min<int64_t>(result * size, int64_t{1} << 40);
    return result;
  };
  const bool dense = check_grid(problems, s, "dense layers", s.gtp > 1 ? "tp*pp*cp*gtp" : "tp*pp*cp",
                                product(s.tp, s.pp, s.cp, s.gtp));
  const bool expert = check_grid(problems, s, "experts", s.egtp > 1 ? "etp*ep*pp*egtp" : "etp*ep*pp",
                                 product(s.expert_tp(), s.ep, s.pp, s.egtp));
  if (!dense || !expert) return problems;

  const int n = s.optimizer_instances;
  if (s.dp() * s.cp % n != 0)
    problems.push_back(fmt::format("{} optimizer instances do not divide dp*cp = {}", n, s.dp() * s.cp));
  if (s.edp() % n != 0)
    problems.push_back(fmt::format("{} optimizer instances do not divide edp = {}", n, s.edp()));
  if (n > 1 && (s.gtp > 1 || s.egtp > 1))
    problems.push_back(fmt::format(
        "{} optimizer instances with gtp={} egtp={}: use one instance, or gtp = egtp = 1", n, s.gtp, s.egtp));
  if (!s.cp_levels.empty()) {
    const int64_t levels = std::accumulate(s.cp_levels.begin(), s.cp_levels.end(), int64_t{1},
                                           [&](int64_t a, int b) { return product(a, b); });
    if (levels != s.cp)
      problems.push_back(fmt::format("cp levels [{}] multiply to {}, not to cp = {}: make them agree",
                                     fmt::join(s.cp_levels, ","), levels, s.cp));
  }
  if (s.hybrid_cp && s.dp() * s.cp % 2 != 0)
    problems.push_back(
        fmt::format("hybrid context parallelism needs an even dp*cp, which is {}", s.dp() * s.cp));

  for (std::string& problem : inactive_problems(s)) problems.push_back(std::move(problem));
  try {
    const RankGrid dense_ranks = dense_grid(s), expert_ranks = expert_grid(s);
    const bool pp_last = split_names(s.order).back() == "pp";
    if (!pp_last && s.pp > 1 && s.dp() != s.edp())
      problems.push_back(fmt::format(
          "order {} does not end in pp, so dense and expert layers need the same data-parallel size, "
          "but dp={} and edp={}: end the order in pp, or choose etp*ep = tp*cp",
          s.order, s.dp(), s.edp()));
    else if (dense_ranks.groups("pp") != expert_ranks.groups("pp"))
      problems.push_back(fmt::format(
          "order {} gives dense and expert layers different pipelines: end the order in pp", s.order));
  } catch (const ConfigError& error) {
    problems.push_back(error.what());
  }
  return problems;
}

void check_parallel(const ParallelSizes& sizes) {
  const std::vector<std::string> problems = parallel_problems(sizes);
  if (!problems.empty())
    throw ConfigError(fmt::format("parallel layout: {}", fmt::join(problems, "\nparallel layout: ")));
}

std::vector<GroupRanks> parallel_groups(const ParallelSizes& sizes) {
  check_parallel(sizes);
  if (!sizes.inactive.empty()) return ReplicaLayout(sizes).groups(sizes);
  return GroupLister(sizes).list();
}

Axis alias(Axis axis, const ParallelSizes& sizes) {
  if (sizes.gtp == 1 && axis == Axis::gtp_dp) return Axis::dp;
  if (sizes.gtp == 1 && axis == Axis::gtp_dp_cp) return Axis::dp_cp;
  if (sizes.optimizer_instances == 1 && axis == Axis::intra_dp_cp) return Axis::dp_cp;
  if (sizes.optimizer_instances == 1 && axis == Axis::intra_edp) return Axis::edp;
  return axis;
}

}  // namespace megatron
