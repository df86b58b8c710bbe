// One set of environments for all ranks of a process.
#include <gtest/gtest.h>

#include <thread>

#include "environment_files.h"
#include "megatron/rl/environments/environment_set.h"

namespace megatron::rl {
namespace {

using testing::TempDir;
using testing::write_text;

TEST(EnvironmentThreads, ShareASet) {
  TempDir dir;
  write_text(dir / "a.jsonl", numbered_rows("a", 20));
  write_text(dir / "c.jsonl", R"({"target": 6, "nums": [2, 3]})");
  const EnvironmentSet set = EnvironmentSet::read(write_environments(dir, R"(
- {agent_type: JsonlAgent, agent_args: {dataset_file: a.jsonl, env_id: text, rule: regex}, weight: 1}
- {agent_type: MathAgent, agent_args: {dataset_file: a.jsonl, problem_key: prompt}, weight: 1}
- {agent_type: CountdownAgent, agent_args: {dataset_file: c.jsonl}, weight: 1}
- {agent_type: ProgramAgent, agent_args: {dataset_file: a.jsonl, command: cat >/dev/null; echo 7}, weight: 1}
)"));
  const auto total = [&] {
    double sum = 0;
    for (const RolloutTask& task : set.training_tasks(5, 0, 24))
      sum += set.reward(task, {task.data.dump() + " <answer>2 * 3</answer>"});
    return sum;
  };
  const double expected = total();
  EXPECT_GE(expected, 6 * 7 + 6 + 6);
  std::vector<double> sums(4);
  std::vector<std::thread> threads;
  for (double& sum : sums) threads.emplace_back([&sum, &total] { sum = total(); });
  for (std::thread& thread : threads) thread.join();
  for (const double sum : sums) EXPECT_EQ(sum, expected);
}

}  // namespace
}  // namespace megatron::rl
