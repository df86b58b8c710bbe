#include "megatron/cli/groups_command.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "megatron/base/error.h"
#include "megatron/base/json.h"
#include "megatron/cli/flags.h"
#include "megatron/parallel/parallel_groups.h"

namespace megatron {
namespace {

struct Settings {
  ParallelSizes sizes;
  std::optional<int> weight_shards, expert_weight_shards;
  bool world_given = false;
  bool json = false;
};

int to_int(std::string_view flag, const std::string& text) {
  return static_cast<int>(parse_int("groups", flag, text));
}

std::vector<Flag> flags(Settings& s) {
  const auto size = [&s](std::string_view name, int ParallelSizes::*member, std::string_view help) {
    return Flag{name, "N", help,
                [&s, name, member](const std::string& v) { s.sizes.*member = to_int(name, v); }};
  };
  return {
      {"--world-size", "N", "number of ranks",
       [&s](const std::string& v) {
         s.sizes.world = to_int("--world-size", v);
         s.world_given = true;
       }},
      {"--rank-order", "ORDER", "axes, the fastest first (tp-cp-ep-dp-pp)",
       [&s](const std::string& v) { s.sizes.order = v; }},
      {"--use-tp-pp-dp-mapping", "", "the order tp-cp-ep-pp-dp",
       [&s](const std::string&) { s.sizes.order = "tp-cp-ep-pp-dp"; }},
      size("--tensor-model-parallel-size", &ParallelSizes::tp, "tensor parallel"),
      size("--pipeline-model-parallel-size", &ParallelSizes::pp, "pipeline parallel"),
      size("--context-parallel-size", &ParallelSizes::cp, "context parallel"),
      size("--expert-model-parallel-size", &ParallelSizes::ep, "expert parallel"),
      {"--expert-tensor-parallel-size", "N", "tensor parallel inside experts (that of the dense layers)",
       [&s](const std::string& v) { s.sizes.etp = to_int("--expert-tensor-parallel-size", v); }},
      {"--tensor-parallel-num-weight-shards", "N", "shards of each weight, a multiple of tensor parallel",
       [&s](const std::string& v) { s.weight_shards = to_int("--tensor-parallel-num-weight-shards", v); }},
      {"--expert-tensor-parallel-num-weight-shards", "N", "the same for experts",
       [&s](const std::string& v) {
         s.expert_weight_shards = to_int("--expert-tensor-parallel-num-weight-shards", v);
       }},
      size("--num-distributed-optimizer-instances", &ParallelSizes::optimizer_instances,
           "replicas of the sharded optimizer"),
      {"--hierarchical-context-parallel-sizes", "A,B", "levels of context parallel, the innermost first",
       [&s](const std::string& v) {
         s.sizes.cp_levels.clear();
         for (size_t at = 0; at <= v.size();) {
           const size_t end = std::min(v.find(',', at), v.size());
           s.sizes.cp_levels.push_back(
               to_int("--hierarchical-context-parallel-sizes", v.substr(at, end - at)));
           at = end + 1;
         }
       }},
      {"--hybrid-context-parallel", "", "groups for a context size chosen per sample",
       [&s](const std::string&) { s.sizes.hybrid_cp = true; }},
      {"--json", "", "one JSON document", [&s](const std::string&) { s.json = true; }},
  };
}

int shards_beyond(std::optional<int> shards, int tp, std::string_view flag) {
  if (!shards) return 1;
  if (tp < 1 || *shards < tp || *shards % tp != 0)
    throw ConfigError(fmt::format("groups: {} is {}, which is no multiple of the tensor-parallel size {}",
                                  flag, *shards, tp));
  return *shards / tp;
}

Settings parse(const std::vector<std::string>& args) {
  Settings settings;
  const auto words = parse_flags("groups", args, flags(settings));
  if (!words.empty()) throw UsageError(fmt::format("groups: '{}' is no option", words[0]));
  if (!settings.world_given) throw UsageError("groups: --world-size is missing");
  ParallelSizes& sizes = settings.sizes;
  sizes.gtp = shards_beyond(settings.weight_shards, sizes.tp, "--tensor-parallel-num-weight-shards");
  sizes.egtp = shards_beyond(settings.expert_weight_shards, sizes.expert_tp(),
                             "--expert-tensor-parallel-num-weight-shards");
  return settings;
}

// Axes that coincide with another are written out too: a reader looks for the name that it knows.
std::vector<std::pair<std::string, RankLists>> named_groups(const ParallelSizes& sizes) {
  const std::vector<GroupRanks> groups = parallel_groups(sizes);
  std::vector<std::pair<std::string, RankLists>> result;
  for (Axis axis : all_axes()) {
    const Axis listed = alias(axis, sizes);
    for (int level = 0;; ++level) {
      RankLists lists;
      for (const GroupRanks& group : groups)
        if (group.axis == listed && group.level == level) lists.push_back(group.ranks);
      if (lists.empty()) break;
      const bool levels = axis == Axis::cp_level || axis == Axis::hybrid_dp_cp;
      result.emplace_back(levels ? fmt::format("{}-{}", axis_name(axis), level) : axis_name(axis),
                          std::move(lists));
    }
  }
  return result;
}

}  // namespace

std::string groups_help() {
  std::string text =
      "usage: megatron groups --world-size N [options]\n"
      "\n"
      "Prints every process group of a parallel layout as lists of ranks. Checks the layout only: no model "
      "is needed.\n"
      "\n";
  Settings unused;
  return text + flags_help(flags(unused));
}

int run_groups(Invocation& invocation) {
  const Settings settings = parse(invocation.args);
  const auto groups = named_groups(settings.sizes);
  if (settings.json) {
    Json document = Json::object();
    for (const auto& [name, lists] : groups) {
      Json rows = Json::array();
      for (const auto& ranks : lists) rows.push_back(Json(Json::Array(ranks.begin(), ranks.end())));
      document[name] = std::move(rows);
    }
    fmt::print(invocation.out, "{}\n", document.dump());
    return 0;
  }
  for (const auto& [name, lists] : groups) {
    fmt::print(invocation.out, "{:<15} {:>3} × {:<3}", name, lists.size(), lists[0].size());
    for (const auto& ranks : lists) fmt::print(invocation.out, " [{}]", fmt::join(ranks, " "));
    fmt::print(invocation.out, "\n");
  }
  return 0;
}

}  // namespace megatron
