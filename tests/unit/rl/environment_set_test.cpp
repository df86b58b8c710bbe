// Reading --langrl-env-config, and the order of its tasks.
#include "megatron/rl/environments/environment_set.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "environment_files.h"
#include "fuzz/feed.h"
#include "megatron/datasets/parquet/parquet_writer.h"
#include "megatron/rl/environments/task_order.h"
#include "support/error_of.h"

namespace megatron::rl {
namespace {

using testing::error_of;
using testing::TempDir;
using testing::write_text;

constexpr const char* kTwo = R"(
- agent_type: JsonlAgent
  agent_args: {dataset_file: a.jsonl, env_id: a, validation_rows: 3}
  weight: 3
- agent_type: JsonlAgent
  agent_args: {dataset_file: b.jsonl, env_id: b}
  weight: 1.0
# The third is not trained on, since its rows are few and its answers are known to whoever reads this text.
- agent_type: JsonlAgent
  agent_args: {dataset_file: c.jsonl, env_id: c}
  weight: 0.0
  evaluation_only: true
)";

void write_rows(const TempDir& dir) {
  write_text(dir / "a.jsonl", numbered_rows("a", 13));
  write_text(dir / "b.jsonl", numbered_rows("b", 40));
  write_text(dir / "c.jsonl", numbered_rows("c", 5));
}

std::vector<std::string> prompts(const std::vector<RolloutTask>& tasks) {
  std::vector<std::string> texts;
  for (const RolloutTask& task : tasks) texts.push_back(task.prompt);
  return texts;
}

TEST(EnvironmentSet, ReadsEntriesAndSplits) {
  TempDir dir;
  write_rows(dir);
  const EnvironmentSet set = EnvironmentSet::read(write_environments(dir, kTwo));
  ASSERT_EQ(set.environments().size(), 3u);
  EXPECT_EQ(set.environment("a").size(), 10);
  EXPECT_EQ(set.environment("a").validation_size(), 3);
  EXPECT_EQ(set.environment("b").size(), 36);
  EXPECT_EQ(set.environment("b").validation_size(), 4);
  EXPECT_EQ(set.environment("c").size(), 0);
  EXPECT_EQ(set.environment("c").validation_size(), 5);
  const RolloutTask task = set.environment("a").validation_task(1);
  EXPECT_EQ(task.prompt, "a11");
  EXPECT_EQ(task.environment, "a");
  ASSERT_EQ(task.messages.size(), 1u);
  EXPECT_EQ(task.messages[0].role, "user");
  EXPECT_EQ(task.messages[0].content, "a11");
  EXPECT_EQ(set.reward(task, {" 11\n"}), 1);
  EXPECT_EQ(set.reward(task, {"12"}), 0);
  EXPECT_EQ(prompts(set.evaluation_tasks(2)),
            (std::vector<std::string>{"a10", "a11", "b36", "b37", "c0", "c1"}));
  EXPECT_EQ(set.evaluation_tasks(100).size(), 12u);
}

TEST(EnvironmentSet, TrainingTasksAreAPureFunction) {
  TempDir dir;
  write_rows(dir);
  const EnvironmentSet set = EnvironmentSet::read(write_environments(dir, kTwo));
  const auto all = prompts(set.training_tasks(7, 0, 200));
  for (int64_t first : {0, 1, 17, 150})
    for (int64_t count : {0, 1, 8, 50}) {
      const auto part = prompts(set.training_tasks(7, first, count));
      EXPECT_EQ(part, std::vector<std::string>(all.begin() + first, all.begin() + first + count));
    }
  EXPECT_EQ(prompts(EnvironmentSet::read(dir / "environments.yaml").training_tasks(7, 0, 200)), all);
  EXPECT_NE(prompts(set.training_tasks(8, 0, 200)), all);
}

TEST(EnvironmentSet, WeightsAndEpochs) {
  TempDir dir;
  write_rows(dir);
  const EnvironmentSet set = EnvironmentSet::read(write_environments(dir, kTwo));
  std::map<std::string, int> count;
  std::vector<std::string> of_a;
  int n = 0;
  for (const RolloutTask& task : set.training_tasks(7, 0, 400)) {
    ++count[task.environment];
    if (task.environment == "a") of_a.push_back(task.prompt);
    ++n;
    EXPECT_NEAR(count["a"], 0.75 * n, 1) << n;
  }
  EXPECT_EQ(count["c"], 0);
  // Thirty epochs of ten tasks: each task once an epoch, epochs in orders of their own.
  ASSERT_EQ(of_a.size(), 300u);
  std::set<std::vector<std::string>> orders;
  for (size_t epoch = 0; epoch < 30; ++epoch) {
    const auto begin = of_a.begin() + static_cast<std::ptrdiff_t>(10 * epoch);
    EXPECT_EQ(std::set<std::string>(begin, begin + 10).size(), 10u);
    orders.insert({begin, begin + 10});
  }
  EXPECT_GE(orders.size(), 29u);
}

TEST(EnvironmentSet, OrderOfOneDoesNotDependOnOthers) {
  TempDir dir;
  write_rows(dir);
  const auto of_b = [&](const std::string& yaml) {
    std::vector<std::string> texts;
    for (const RolloutTask& task :
         EnvironmentSet::read(write_environments(dir, yaml)).training_tasks(7, 0, 100))
      if (task.environment == "b" && texts.size() < 20) texts.push_back(task.prompt);
    return texts;
  };
  EXPECT_EQ(of_b(kTwo),
            of_b("- {agent_type: JsonlAgent, agent_args: {dataset_file: b.jsonl, env_id: b}, weight: 5}"));
}

TEST(TaskOrder, ShuffledIsAPermutation) {
  for (int64_t size : {1, 2, 3, 5, 16, 17, 100, 1023, 1025}) {
    for (uint64_t key : {0u, 1u, 99u}) {
      std::set<int64_t> seen;
      for (int64_t i = 0; i < size; ++i) {
        const int64_t number = shuffled(size, key, i);
        EXPECT_GE(number, 0);
        EXPECT_LT(number, size);
        seen.insert(number);
      }
      EXPECT_EQ(static_cast<int64_t>(seen.size()), size);
    }
  }
  // Every number comes first about equally often.
  std::map<int64_t, int> first;
  for (uint64_t key = 0; key < 6000; ++key) ++first[shuffled(6, key, 0)];
  for (int64_t i = 0; i < 6; ++i) EXPECT_NEAR(first[i], 1000, 150);
}

TEST(TaskOrder, ManyWeights) {
  const std::vector<double> weights = {0.5, 0.3, 0, 0.15, 0.05};
  std::vector<int> count(5);
  int n = 0;
  for (const TaskTurn& turn : task_turns(weights, 0, 1000)) {
    EXPECT_EQ(turn.turn, count[turn.entry]++);
    ++n;
    for (size_t i = 0; i < 5; ++i) EXPECT_NEAR(count[i], weights[i] * n, 2);
  }
  EXPECT_EQ(count, (std::vector<int>{500, 300, 0, 150, 50}));
}

// The first block of that language in the documentation of environments.
std::string documented(const std::string& language) {
  const std::string page = testing::read_text(std::string(MEGATRON_SOURCE_DIR) + "/docs/rl-environments.md");
  const size_t begin = page.find("```" + language + "\n") + 4 + language.size();
  return page.substr(begin, page.find("```", begin) - begin);
}

TEST(EnvironmentSet, DocumentedConfigurationWorks) {
  TempDir dir;
  write_text(dir / "sums.jsonl", documented("json"));
  const EnvironmentSet set = EnvironmentSet::read(write_environments(dir, documented("yaml")));
  std::map<std::string, double> rewards;
  for (const RolloutTask& task : set.training_tasks(1, 0, 2))
    rewards[task.prompt] = set.reward(task, {"It is 13."});
  EXPECT_EQ(rewards, (std::map<std::string, double>{{"What is 2 + 3? Answer with the number alone.", 0},
                                                    {"What is 4 + 9? Answer with the number alone.", 1}}));
  ASSERT_EQ(set.evaluation_tasks(5).size(), 1u);
  EXPECT_EQ(set.reward(set.evaluation_tasks(5)[0], {"8"}), 1);
}

TEST(EnvironmentSet, TellsAllProblems) {
  TempDir dir;
  write_rows(dir);
  const std::string problem = error_of([&] {
    EnvironmentSet::read(write_environments(dir, R"(
- agent_type: CountdownAgent
  agent_args: {hf_dataset_name: some/tasks, split: train}
  weight: 1.0
- agent_type: CountdwnAgent
  agent_args: {}
  weight: 1.0
- agent_type: GSM8KAgent
  agent_args: {dataset_file: gone.jsonl, answer_format: bold, format_rewrd: 0.5}
  weight: -1
- agent_type: RemoteAgent
  agent_args: {}
  weight: 1
- agent_type: AIMEAgent
  agent_args: {dataset_file: a.jsonl}
  weight: 1
- JsonlAgent
- agent_type: JsonlAgent
  dataset_file: a.jsonl
  weight: 1
- agent_type: JsonlAgent
  agent_args: {dataset_file: b.jsonl, answer_key: solution}
  weight: 1
- agent_type: ProgramAgent
  agent_args: {dataset_file: b.jsonl, command: [no-such-program-here], time_limit: 0}
  weight: 1
)"));
  });
  for (const char* part :
       {"entry 1 (CountdownAgent): hf_dataset_name: datasets of a hub are not fetched; give 'dataset_file",
        "load_dataset('some/tasks'",
        "entry 2 (CountdwnAgent): agent_type: unknown type 'CountdwnAgent'; did you mean 'CountdownAgent'?",
        "entry 3 (GSM8KAgent): dataset_file: there is no file gone.jsonl",
        "answer_format: 'bold' is none of boxed, tagged",
        "format_rewrd: unknown argument; did you mean 'format_reward'?",
        "entry 3: weight: expected a number from 0 to 1e9, got -1",
        "entry 4 (RemoteAgent): agent_type: RemoteAgent runs Python; use ProgramAgent",
        "entry 5 (AIMEAgent): AIMEAgent has no tasks for training; set 'evaluation_only: true'",
        "entry 6: expected a mapping",
        "entry 7: unknown key 'dataset_file'; arguments of the agent belong into agent_args",
        "b.jsonl line 1: the row has no 'solution'", "there is no program 'no-such-program-here'",
        "time_limit: expected seconds"})
    EXPECT_NE(problem.find(part), std::string::npos) << part << "\nin\n" << problem;
}

TEST(EnvironmentSet, RefusesSetsWithoutTraining) {
  TempDir dir;
  write_rows(dir);
  const auto read = [&](const std::string& yaml) {
    return error_of([&] { EnvironmentSet::read(write_environments(dir, yaml)); });
  };
  const std::string one = "- {agent_type: JsonlAgent, agent_args: {dataset_file: a.jsonl}, weight: 1";
  EXPECT_EQ(read(one + "}"), "no error");
  EXPECT_EQ(read("- {agent_type: JsonlAgent, agent_args: {dataset_file: a.jsonl}}"), "no error");  // weight 1
  EXPECT_NE(read(one + ", evaluation_only: true}").find("none can be trained on"), std::string::npos);
  EXPECT_NE(read(one + "}\n" + one + "}").find("two are called 'jsonl'; give one of them 'env_id"),
            std::string::npos);
  EXPECT_NE(read("").find("expected a list"), std::string::npos);
  EXPECT_NE(read("[]").find("an empty one"), std::string::npos);
  EXPECT_NE(read("a: 1").find("expected a list"), std::string::npos);
  EXPECT_NE(read("- [").find("environments.yaml"), std::string::npos);
  EXPECT_NE(error_of([&] { EnvironmentSet::read(dir / "none.yaml"); }).find("none.yaml"), std::string::npos);
  write_text(dir / "empty.jsonl", "\n\n");
  EXPECT_NE(read("- {agent_type: JsonlAgent, agent_args: {dataset_file: empty.jsonl}, weight: 1}")
                .find("has no rows"),
            std::string::npos);
  write_text(dir / "x.csv", "question,answer");
  write_text(dir / "x.parquet", "PAR1");
  EXPECT_NE(read("- {agent_type: JsonlAgent, agent_args: {dataset_file: x.csv}, weight: 1}").find("read_csv"),
            std::string::npos);
  EXPECT_NE(
      read("- {agent_type: JsonlAgent, agent_args: {dataset_file: x.parquet}, weight: 1}").find("x.parquet"),
      std::string::npos);
  EXPECT_NE(read("- {agent_type: JsonlAgent, agent_args: {dataset_file: a.jsonl, train_rows: 10, "
                 "validation_rows: 9}, "
                 "weight: 1}")
                .find("10 and 9 rows of 13"),
            std::string::npos);
}

TEST(EnvironmentSet, ReadsParquetAsJsonLines) {
  TempDir dir;
  const std::vector<std::string> questions = {"1 + 1", "2 + 3", "4 + 4"},
                                 answers = {"#### 2", "#### 5", "#### 8"};
  std::string lines;
  for (size_t i = 0; i < questions.size(); ++i)
    lines += fmt::format("{{\"question\": \"{}\", \"answer\": \"{}\"}}\n", questions[i], answers[i]);
  write_text(dir / "train.jsonl", lines);
  ParquetWriter writer(dir / "train.parquet", {{"question"}, {"answer"}, {"ids", ParquetKind::int32_list}});
  const auto write = [&](size_t begin, size_t end) {
    const std::variant<ParquetWriter::Texts, ParquetWriter::Lists> columns[] = {
        ParquetWriter::Texts{questions.begin() + begin, questions.begin() + end},
        ParquetWriter::Texts{answers.begin() + begin, answers.begin() + end},
        ParquetWriter::Lists(end - begin, {7, 8})};
    writer.write_rows(columns);
  };
  write(0, 2);
  write(2, 3);
  writer.commit();
  const auto set_of = [&](const char* file) {
    return EnvironmentSet::read(write_environments(
        dir, fmt::format("- {{agent_type: GSM8KAgent, agent_args: {{dataset_file: {}, train_rows: 3, "
                         "validation_rows: 0}}, weight: 1}}",
                         file)));
  };
  const EnvironmentSet lines_set = set_of("train.jsonl"), parquet = set_of("train.parquet");
  const auto expected = lines_set.training_tasks(1, 0, 6), tasks = parquet.training_tasks(1, 0, 6);
  ASSERT_EQ(tasks.size(), 6u);
  for (size_t i = 0; i < tasks.size(); ++i) {
    EXPECT_EQ(tasks[i].prompt, expected[i].prompt);
    const std::string right = answers.at(static_cast<size_t>(tasks[i].index)).substr(5);
    for (const std::string& number : {right, std::string("77")}) {
      const std::string text = "\\boxed{" + number + "}";
      EXPECT_EQ(parquet.reward(tasks[i], {.text = text, .stopped = true}),
                lines_set.reward(expected[i], {.text = text, .stopped = true}));
      EXPECT_EQ(parquet.reward(tasks[i], {.text = text, .stopped = true}) > 0, number == right);
    }
  }
}

TEST(EnvironmentSet, FuzzedConfigurationsAreReadOrRefused) {
  TempDir dir;
  write_rows(dir);
  testing::fuzz(
      testing::Mutator(31,
                       {kTwo,
                        "- agent_type: MathAgent\n  agent_args: {dataset_file: b.jsonl, problem_key: prompt, "
                        "format_reward: 0.5}\n  weight: 1.0\n",
                        "- agent_type: CountdownAgent\n  agent_args:\n    dataset_file: a.jsonl\n    split: "
                        "train\n  weight: 1e0\n  evaluation_only: false\n",
                        "- {agent_type: ProgramAgent, agent_args: {dataset_file: a.jsonl, command: [cat], "
                        "time_limit: 2.5}, weight: 2}\n"},
                       {"agent_type: ",
                        "weight: .inf",
                        "weight: -1",
                        "weight: 1e999",
                        "agent_args: ~",
                        "evaluation_only: 3",
                        "&a ",
                        "*a",
                        "<<: ",
                        "- - -",
                        "{",
                        "[",
                        "}",
                        "\"",
                        ": ",
                        "\t",
                        "train_rows: 99999999999999999999",
                        "validation_rows: -1",
                        "dataset_file: /",
                        "dataset_file: [a]",
                        "GSM8KAgent",
                        std::string(1, '\0'),
                        "\xff",
                        "!!binary ",
                        "? ",
                        std::string(300, '[')}),
      700, [&](const std::string& text) {
        const EnvironmentSet set = EnvironmentSet::parse(text, dir / "environments.yaml");
        set.training_tasks(1, 0, 3);
        set.evaluation_tasks(2);
      });
}

TEST(EnvironmentSet, FuzzedRowsAreReadOrRefused) {
  TempDir dir;
  const std::string rows =
      R"({"prompt": [{"role": "user", "content": "2 + 2?"}], "answer": "4", "rule": "number", "target": 6, "nums": [2, 3]})"
      "\n"
      R"({"prompt": "a?", "answer": "[ab]+c", "rule": "regex", "target": 7, "nums": [3, 4], "problem": "p"})"
      "\n";
  const EnvironmentSet::Entry none;
  testing::fuzz(
      testing::Mutator(32, {rows, rows + rows},
                       {"null", "{}", "[]", "\"rule\": \"math\"", "\"nums\": []", "1e999", "\\u0000", "(((",
                        "{99999}", "\"\"", "\n", "\\ud800", std::string(1, '\0')}),
      200, [&](const std::string& text) {
        std::filesystem::remove(dir / "x.jsonl");
        write_text(dir / "x.jsonl", text);
        const EnvironmentSet set = EnvironmentSet::read(write_environments(dir, R"(
- {agent_type: JsonlAgent, agent_args: {dataset_file: x.jsonl}, weight: 1}
- {agent_type: CountdownAgent, agent_args: {dataset_file: x.jsonl}, weight: 1}
)"));
        for (const RolloutTask& task : set.training_tasks(1, 0, 6))
          set.reward(task, {"<answer>2 * 3</answer> 4"});
      });
}

}  // namespace
}  // namespace megatron::rl
