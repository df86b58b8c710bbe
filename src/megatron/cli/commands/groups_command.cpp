#include "megatron/cli/commands.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "megatron/base/error.h"
#include "megatron/base/json.h"
#include "megatron/config/help.h"
#include "megatron/config/resolve/resolve.h"
#include "megatron/models/parallel_setup.h"

namespace megatron {
namespace {

constexpr CommandFlag kFlags[] = {
    {"--rank-order", 1, "axes, the fastest first (tp-cp-ep-dp-pp)"},
    {"--json", 0, "one JSON document"},
};

void check_shards(int64_t shards, int64_t tp, std::string_view flag) {
  if (shards % tp != 0)
    throw ConfigError(fmt::format("groups: {} is {}, which is no multiple of the tensor-parallel size {}",
                                  flag, shards, tp));
}

ParallelSizes read_sizes(const CommandLine& line) {
  if (!line.words.empty()) throw UsageError(fmt::format("groups: '{}' is no option", line.words[0]));
  const Resolved resolved =
      resolve(read_sources(line), {.purpose = Purpose::inspect, .allow_unavailable = true, .rules = false});
  const ParallelConfig& parallel = resolved.config.parallel;
  if (!resolved.world_size) throw UsageError("groups: --world-size is missing");
  check_shards(parallel.tensor_parallel_num_weight_shards, parallel.tensor_model_parallel_size,
               "--tensor-parallel-num-weight-shards");
  check_shards(parallel.expert_tensor_parallel_num_weight_shards, parallel.expert_tensor_parallel_size,
               "--expert-tensor-parallel-num-weight-shards");
  ParallelSizes sizes = parallel_sizes(resolved.config, *resolved.world_size);
  if (line.has("--rank-order")) sizes.order = line.get("--rank-order");
  return sizes;
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
      "usage: megatron groups --world-size N [settings] [options]\n"
      "\n"
      "Prints every process group of a parallel layout as lists of ranks. Checks the layout only: no model "
      "is needed.\n"
      "\n"
      "options:\n";
  for (const CommandFlag& flag : kFlags) text += fmt::format("  {:<14}  {}\n", flag.name, flag.help);
  return text + "\n" + settings_overview();
}

int run_groups(Invocation& invocation) {
  const CommandLine line = parse_command_line(invocation.args, kFlags);
  const auto groups = named_groups(read_sizes(line));
  if (line.has("--json")) {
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
