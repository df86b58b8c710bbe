#include "megatron/rl/environments/environment_set.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "megatron/base/hash.h"
#include "megatron/base/nearest.h"
#include "megatron/base/refuse.h"
#include "megatron/base/text_file.h"
#include "megatron/config/sources/yaml.h"
#include "megatron/rl/environments/make_environment.h"
#include "megatron/rl/environments/task_order.h"
#include "megatron/tensor/philox.h"

namespace megatron::rl {
namespace {

// A wrong file is told when it is opened, not when its first task is due.
void read_first_task(const Environment& environment, const std::string& origin, Problems& problems) {
  try {
    if (environment.size() > 0) environment.task(0);
    if (environment.validation_size() > 0) environment.validation_task(0);
  } catch (const Error& error) {
    problems.add("{}: {}", origin, error.what());
  }
}

// An entry of the list; without an environment where something was rejected.
EnvironmentSet::Entry read_entry(const Json& item, const std::string& origin, const std::string& folder,
                                 Problems& problems) {
  static constexpr std::array<std::string_view, 4> kKeys = {"agent_type", "agent_args", "weight",
                                                            "evaluation_only"};
  EnvironmentSet::Entry entry;
  if (!item.is_object()) {
    problems.add("{}: expected a mapping with agent_type, agent_args and weight, got {}", origin,
                 item.type_name());
    return entry;
  }
  const std::vector<std::string> names(kKeys.begin(), kKeys.end());
  for (const auto& [key, value] : item.as_object()) {
    if (std::find(names.begin(), names.end(), key) != names.end()) continue;
    const auto candidates = nearest(key, names);
    problems.add("{}: unknown key '{}'; {}", origin, key,
                 candidates.empty() ? fmt::format("arguments of the agent belong into agent_args")
                                    : did_you_mean(candidates));
  }
  const Json *type = item.find("agent_type"), *args = item.find("agent_args"), *weight = item.find("weight"),
             *only = item.find("evaluation_only");
  if (!type || !type->is_string()) {
    problems.add("{}: agent_type: expected the name of a type, such as CountdownAgent", origin);
    return entry;
  }
  if (only && !only->is_bool()) problems.add("{}: evaluation_only: expected true or false", origin);
  entry.evaluation_only = only && only->is_bool() && only->as_bool();
  if (weight && (!weight->is_number() || !(weight->as_double() >= 0) || weight->as_double() > 1e9)) {
    problems.add("{}: weight: expected a number from 0 to 1e9, got {}", origin, weight->dump());
  } else if (weight) {
    entry.weight = weight->as_double();
  }
  const std::string subject = fmt::format("{} ({})", origin, type->as_string());
  EnvironmentArguments arguments(args ? *args : Json::object(), subject, folder, problems);
  entry.environment = make_environment(type->as_string(), arguments, entry.evaluation_only);
  if (entry.environment) read_first_task(*entry.environment, subject, problems);
  return entry;
}

bool is_trained_on(const EnvironmentSet::Entry& entry) { return !entry.evaluation_only && entry.weight > 0; }

}  // namespace

EnvironmentSet EnvironmentSet::read(const std::string& path) {
  return parse(refuse_faults("--langrl-env-config", [&] { return read_text_file(path); }), path);
}

EnvironmentSet EnvironmentSet::parse(const std::string& yaml, const std::string& path) {
  const Json list = refuse_faults(path, [&] { return parse_yaml(yaml, path); });
  require_input(
      list.is_array() && list.size() > 0,
      "{}: expected a list of environments, each '- agent_type: TYPE' with agent_args and weight, got {}",
      path, list.is_array() ? "an empty one" : list.type_name());
  const std::string folder = std::filesystem::path(path).parent_path().string();
  Problems problems;
  std::vector<Entry> entries;
  for (size_t i = 0; i < list.size(); ++i)
    entries.push_back(read_entry(list[i], fmt::format("entry {}", i + 1), folder, problems));
  problems.raise(path);
  return refuse_faults(path, [&] { return EnvironmentSet(std::move(entries)); });
}

EnvironmentSet::EnvironmentSet(std::vector<Entry> entries) : entries_(std::move(entries)) {
  std::set<std::string> names;
  bool any = false;
  for (const Entry& entry : entries_) {
    const Environment& environment = *entry.environment;
    require_input(
        names.insert(environment.name()).second,
        "environments: two are called '{0}'; give one of them 'env_id: another_name' in its agent_args",
        environment.name());
    if (!is_trained_on(entry)) continue;
    require_input(
        environment.size() > 0,
        "environments: {} has no rows for training; give it more rows, or set 'evaluation_only: true'",
        environment.name());
    any = true;
  }
  require_input(
      any, "environments: none can be trained on; give one a weight above 0 and 'evaluation_only: false'");
}

const Environment& EnvironmentSet::environment(std::string_view name) const {
  for (const Entry& entry : entries_)
    if (entry.environment->name() == name) return *entry.environment;
  fail("environments: there is none called '{}'", name);
}

std::vector<RolloutTask> EnvironmentSet::training_tasks(uint64_t seed, int64_t first, int64_t count) const {
  double sum = 0;
  for (const Entry& entry : entries_)
    if (is_trained_on(entry)) sum += entry.weight;
  std::vector<double> weights;
  for (const Entry& entry : entries_) weights.push_back(is_trained_on(entry) ? entry.weight / sum : 0);

  std::vector<RolloutTask> tasks;
  for (const TaskTurn& turn : task_turns(weights, first, count)) {
    const Environment& environment = *entries_[turn.entry].environment;
    const int64_t size = environment.size();
    const Philox key =
        Philox::at({seed, hash_text(environment.name())}, static_cast<uint64_t>(turn.turn / size));
    const uint64_t epoch = (uint64_t{key.word[0]} << 32) | key.word[1];
    tasks.push_back(environment.task(shuffled(size, epoch, turn.turn % size)));
  }
  return tasks;
}

std::vector<RolloutTask> EnvironmentSet::evaluation_tasks(int64_t count) const {
  std::vector<RolloutTask> tasks;
  for (const Entry& entry : entries_)
    for (int64_t i = 0; i < std::min(count, entry.environment->validation_size()); ++i)
      tasks.push_back(entry.environment->validation_task(i));
  return tasks;
}

double EnvironmentSet::reward(const RolloutTask& task, const RolloutResponse& response) const {
  return environment(task.environment).reward(task, response);
}

}  // namespace megatron::rl
