#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/rl/environments/environment.h"

namespace megatron::rl {

// The environments of --langrl-env-config.
class EnvironmentSet {
 public:
  struct Entry {
    std::shared_ptr<const Environment> environment;
    double weight = 1;  // 0: never trained on
    bool evaluation_only = false;
  };

  // Reads a YAML list of {agent_type, agent_args, weight, evaluation_only} and the data files that it names;
  // relative names are looked for beside the YAML file, then in the current folder. A ConfigError tells all
  // problems of the file.
  static EnvironmentSet read(const std::string& path);
  // The same of the text of such a file.
  static EnvironmentSet parse(const std::string& yaml, const std::string& path);
  // A ConfigError where no entry can be trained on or two have one name.
  explicit EnvironmentSet(std::vector<Entry> entries);

  const std::vector<Entry>& environments() const { return entries_; }
  const Environment& environment(std::string_view name) const;

  // Prompts [first, first + count) of a run, a pure function of its arguments. Of any first n prompts an
  // environment has its weight's share to within one for two environments (a few for many), and reads each of
  // its tasks once before any twice, in an order that the seed chooses.
  std::vector<RolloutTask> training_tasks(uint64_t seed, int64_t first, int64_t count) const;
  // The first `count` validation tasks of every environment, or all where it has fewer.
  std::vector<RolloutTask> evaluation_tasks(int64_t count) const;

  double reward(const RolloutTask& task, const RolloutResponse& response) const;

 private:
  std::vector<Entry> entries_;
};

}  // namespace megatron::rl
