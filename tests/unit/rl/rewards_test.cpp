// What each kind of environment rewards.
#include <gtest/gtest.h>

#include <chrono>

#include "environment_files.h"
#include "fuzz/feed.h"
#include "megatron/rl/environments/countdown.h"
#include "megatron/rl/environments/environment_set.h"
#include "megatron/rl/environments/jsonl_environment.h"
#include "megatron/rl/environments/math/answer_equality.h"
#include "megatron/rl/environments/math/final_answer.h"
#include "megatron/rl/environments/math_environment.h"
#include "megatron/rl/environments/program.h"
#include "support/error_of.h"

namespace megatron::rl {
namespace {

using testing::error_of;
using testing::TempDir;
using testing::write_text;

// One environment of these rows; task 0 is trained on.
EnvironmentSet read_one(const TempDir& dir, const std::string& type, const std::string& rows,
                        const std::string& arguments = "") {
  write_text(dir / "rows.jsonl", rows);
  return EnvironmentSet::read(write_environments(
      dir,
      fmt::format(
          "- agent_type: {}\n  agent_args: {{dataset_file: rows.jsonl, validation_rows: 0, env_id: x{}}}\n"
          "  weight: 1\n",
          type, arguments)));
}

TEST(Countdown, Formulas) {
  const std::vector<int64_t> numbers = {3, 5, 7, 2};
  for (const char* right : {"(3 + 5) * 2 - 7", "2*(5+3)-7", "-7+2*(3--5)", "(2)*((5)+(3))-(7)"})
    EXPECT_TRUE(solves_countdown(right, numbers, 9)) << right;
  EXPECT_TRUE(solves_countdown("8/(3-8/3)", {3, 3, 8, 8}, 24));
  EXPECT_TRUE(solves_countdown("-(2 - 5)", {2, 5}, 3));
  EXPECT_TRUE(solves_countdown("1/3*3", {1, 3, 3}, 1));
  EXPECT_TRUE(solves_countdown("10 - 3 - 2", {2, 3, 10}, 5));
  EXPECT_TRUE(solves_countdown("100/10/2", {100, 10, 2}, 5));
  for (const char* wrong :
       {"(3 + 5) * 2", "(3 + 5) * 2 - 7 = 9", "3 5 2 7", "((3+5)*2-7", "3+5)*2-7", "(3+5)*2-7*1", "2**3+5-7",
        "(3.0+5)*2-7", "", "()", "import os", "(3+5)*2-7/0", "35-2*7", "0x9", "(3+5)*2-7;"})
    EXPECT_FALSE(solves_countdown(wrong, numbers, 9)) << wrong;
  EXPECT_FALSE(solves_countdown("1/0", {0, 1}, 0));
  EXPECT_FALSE(solves_countdown("7/2", {2, 7}, 3));
  EXPECT_FALSE(solves_countdown("2+2", {2}, 4));
  EXPECT_FALSE(solves_countdown(std::string(999, '('), {2}, 2));
  EXPECT_FALSE(solves_countdown("9999999999999999999999", {9}, 9));
  EXPECT_FALSE(solves_countdown("999999999999999*999999999999999", {999999999999999, 999999999999999}, 1));
}

TEST(Countdown, Rewards) {
  TempDir dir;
  const auto set = read_one(dir, "CountdownAgent", R"({"target": 9, "nums": [3, 5, 7, 2]})");
  const RolloutTask task = set.training_tasks(1, 0, 1)[0];
  EXPECT_NE(task.prompt.find("9"), std::string::npos);
  EXPECT_NE(task.prompt.find("3, 5, 7, 2"), std::string::npos);
  EXPECT_EQ(set.reward(task, {"Let me see. <answer> (3 + 5) * 2 - 7 </answer>"}), 1);
  EXPECT_EQ(set.reward(task, {"<answer>3 + 5 + 7 + 2</answer>"}), 0.1);
  EXPECT_EQ(set.reward(task, {"<answer>(3 + 5) * 2 - 7</answer> no <answer>3</answer>"}), 0.1);
  EXPECT_EQ(set.reward(task, {"(3 + 5) * 2 - 7"}), 0);
  EXPECT_EQ(set.reward(task, {""}), 0);
  const auto strict =
      read_one(dir, "CountdownAgent", R"({"target": 9, "nums": [3, 5, 7, 2]})", ", format_reward: 0");
  EXPECT_EQ(strict.reward(task, {"<answer>3</answer>"}), 0);
}

TEST(Math, Rewards) {
  TempDir dir;
  const auto set =
      read_one(dir, "GSM8KAgent", R"({"question": "How many?", "answer": "4 + 1,230\n#### 1,234"})",
               ", format_reward: 0.5, negative_reward: -1, partial_end_reward: 0.75");
  const RolloutTask task = set.training_tasks(1, 0, 1)[0];
  EXPECT_EQ(task.prompt.substr(0, 10), "How many?\n");
  EXPECT_NE(task.prompt.find("\\boxed{"), std::string::npos);
  EXPECT_EQ(set.reward(task, {"It is \\boxed{1234}"}), 1);
  EXPECT_EQ(set.reward(task, {"It is \\boxed{1{,}234 \\text{ apples}}\n"}), 1);
  EXPECT_EQ(set.reward(task, {"It is <answer> 1234 </answer>"}), 1);
  EXPECT_EQ(set.reward(task, {"It is \\boxed{1234}. Done"}), 0.75);
  EXPECT_EQ(set.reward(task, {"It is \\boxed{1234}", false}), 0.5);
  EXPECT_EQ(set.reward(task, {"It is \\boxed{1235}"}), 0.5);
  EXPECT_EQ(set.reward(task, {"\\boxed{1234} no, \\boxed{5}"}), 0.5);
  EXPECT_EQ(set.reward(task, {"It is 1234"}), -1);
  EXPECT_EQ(set.reward(task, {"It is \\boxed{1234"}), -1);
  EXPECT_EQ(set.reward(task, {""}), -1);
}

TEST(Math, ExpectedAnswers) {
  EXPECT_EQ(expected_answer("a\n#### 5"), "5");
  EXPECT_EQ(expected_answer("so \\boxed{\\frac{1}{2}}."), "\\frac{1}{2}");
  EXPECT_EQ(expected_answer("x+1"), "x+1");
  EXPECT_EQ(expected_answer("####"), "");
}

TEST(Math, RowsOfEachDataset) {
  TempDir dir;
  const auto check = [&](const std::string& type, const std::string& row, const std::string& problem,
                         const std::string& more = "") {
    const auto set = read_one(dir, type, row, more);
    const RolloutTask task = set.training_tasks(1, 0, 1)[0];
    EXPECT_EQ(task.prompt.substr(0, problem.size() + 1), problem + "\n") << type;
    EXPECT_EQ(set.reward(task, {"<answer>1/2</answer>"}), 1) << type;
    EXPECT_EQ(set.reward(task, {"<answer>1/3</answer>"}), 0) << type;
  };
  check("OpenMathInstructAgent", R"({"problem": "p", "expected_answer": "0.5"})", "p");
  check("BigMathAgent", R"({"problem": "p", "answer": "\\frac12"})", "p");
  check("MathAgent", R"({"problem": "p", "solution": "so $\\boxed{\\frac{1}{2}}$."})", "p");
  check("MathAgent", R"({"q": "p", "a": {"b": 0.5}})", "p", ", problem_key: q, answer_key: a.b");
  check("DAPOAgent", R"({"problem": "p", "answer": "1/2"})", "p");
  check(
      "DAPOAgent",
      R"({"prompt": [{"role": "user", "content": "End with a line Answer: $A.\n\np\nq\n\nBegin it with \"Answer:\"."}], )"
      R"("reward_model": {"ground_truth": "0.5"}})",
      "p\nq");
}

TEST(Math, AimeIsForEvaluation) {
  TempDir dir;
  write_text(dir / "a.jsonl", R"({"ID": "1", "Problem": "p", "Answer": 204})");
  write_text(dir / "b.jsonl", numbered_rows("b", 4));
  const auto set = EnvironmentSet::read(write_environments(dir, R"(
- {agent_type: AIMEAgent, agent_args: {dataset_file: a.jsonl}, weight: 0.0, evaluation_only: true}
- {agent_type: JsonlAgent, agent_args: {dataset_file: b.jsonl, system_prompt: Be brief.}, weight: 1}
)"));
  const auto tasks = set.evaluation_tasks(1);
  ASSERT_EQ(tasks.size(), 2u);
  EXPECT_EQ(set.reward(tasks[0], {"<answer>204</answer>"}), 1);
  ASSERT_EQ(tasks[1].messages.size(), 2u);
  EXPECT_EQ(tasks[1].messages[0].role, "system");
  EXPECT_EQ(tasks[1].messages[0].content, "Be brief.");
  EXPECT_EQ(tasks[1].prompt, "Be brief.\nb3");
}

TEST(Jsonl, Rules) {
  TempDir dir;
  const auto reward = [&](const std::string& row, const std::string& response, const std::string& more = "") {
    const auto set = read_one(dir, "JsonlAgent", row, more);
    return set.reward(set.training_tasks(1, 0, 1)[0], {response});
  };
  const std::string exact = R"({"prompt": "?", "answer": "Yes"})";
  EXPECT_EQ(reward(exact, " Yes\n"), 1);
  EXPECT_EQ(reward(exact, "yes"), 0);
  EXPECT_EQ(reward(exact, "yes", ", ignore_case: true"), 1);
  EXPECT_EQ(reward(exact, "so <answer> Yes</answer>.", ", answer_format: tagged, reward: 2"), 2);
  EXPECT_EQ(reward(exact, "Yes", ", answer_format: boxed, missing_reward: -1"), -1);
  EXPECT_EQ(reward(exact, "\\boxed{No}", ", answer_format: boxed, wrong_reward: -0.5"), -0.5);
  const std::string number = R"({"prompt": "?", "answer": 1234.5, "rule": "number"})";
  EXPECT_EQ(reward(number, "First 7, then 1,234.50."), 1);
  EXPECT_EQ(reward(number, "1234.5 or 7"), 0);
  EXPECT_EQ(reward(number, "none", ", missing_reward: -1"), -1);
  const std::string math = R"({"prompt": "?", "answer": "\\frac{1}{2}"})";
  EXPECT_EQ(reward(math, "0.5", ", rule: math"), 1);
  EXPECT_EQ(reward(math, "0.6", ", rule: math"), 0);
  const std::string regex = R"({"prompt": "?", "answer": "^(cat|dog)s?\\b"})";
  EXPECT_EQ(reward(regex, "dogs bark", ", rule: regex"), 1);
  EXPECT_EQ(reward(regex, "my dogs", ", rule: regex"), 0);
  EXPECT_EQ(reward(regex, "DOGS", ", rule: regex, ignore_case: true"), 1);
  EXPECT_NE(
      error_of([&] { reward(R"({"prompt": "?", "answer": "(a"})", "a", ", rule: regex"); }).find("line 1"),
      std::string::npos);
  // A pattern that backtracks without end is not found, soon.
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(reward(R"({"prompt": "?", "answer": "^(a|a)*b$"})", std::string(3000, 'a'), ", rule: regex"), 0);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(2));
}

TEST(Jsonl, LastNumbers) {
  for (const auto& [text, number] :
       std::initializer_list<std::pair<const char*, const char*>>{{"12", "12"},
                                                                  {"a 12 b", "12"},
                                                                  {"1,234.50.", "1,234.50"},
                                                                  {"3 - 4", "4"},
                                                                  {"is -4.", "-4"},
                                                                  {"5-4", "4"},
                                                                  {"1, 2", "2"},
                                                                  {".5", ".5"},
                                                                  {"x.", ""},
                                                                  {"", ""},
                                                                  {"7..8", ".8"},
                                                                  {"-", ""},
                                                                  {"v1.2", "1.2"}})
    EXPECT_EQ(last_number(text), number) << text;
}

TEST(Jsonl, Conversations) {
  TempDir dir;
  const auto set = read_one(
      dir, "JsonlAgent",
      R"({"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}], "answer": "1"})");
  const RolloutTask task = set.training_tasks(1, 0, 1)[0];
  ASSERT_EQ(task.messages.size(), 2u);
  EXPECT_EQ(task.messages[1].content, "u");
  EXPECT_EQ(task.prompt, "s\nu");
}

TEST(Program, RewardsByStandardInputAndOutput) {
  TempDir dir;
  // Rewards the response's length if the row came along.
  write_text(dir / "reward.sh",
             "#!/bin/sh\nread -r line\ncase \"$line\" in "
             "*'\"answer\":0'*'\"response\":'*|*'\"response\":\"hello\"'*) "
             "echo note; echo 0.25 ;; *) echo -1 ;; esac\n");
  const auto set = read_one(dir, "ProgramAgent", numbered_rows("p", 1),
                            fmt::format(", command: [sh, {}]", dir / "reward.sh"));
  const RolloutTask task = set.training_tasks(1, 0, 1)[0];
  EXPECT_EQ(set.reward(task, {"hello"}), 0.25);
  EXPECT_EQ(set.reward(task, {"bye"}), -1);
}

TEST(Program, FailuresEndTheRunOrGetTheirReward) {
  TempDir dir;
  const auto reward = [&](const std::string& command, const std::string& more = "") {
    const auto set = read_one(dir, "ProgramAgent", numbered_rows("p", 1),
                              fmt::format(", command: '{}', time_limit: 0.3{}", command, more));
    return set.reward(set.training_tasks(1, 0, 1)[0], {"r"});
  };
  EXPECT_EQ(reward("cat > /dev/null; echo 1.5"), 1.5);
  EXPECT_EQ(reward("echo +3"), 3);  // whether it reads its input or not
  EXPECT_EQ(reward("exit 3", ", failure_reward: -2"), -2);
  EXPECT_EQ(reward("echo nan", ", failure_reward: -2"), -2);
  EXPECT_EQ(reward("kill -9 $$", ", failure_reward: -2"), -2);
  EXPECT_EQ(reward("sleep 5", ", failure_reward: -2"), -2);
  const std::string exit = error_of([&] { reward("echo no good >&2; exit 3"); });
  EXPECT_NE(exit.find("exit code 3 on task 0: no good"), std::string::npos) << exit;
  EXPECT_NE(exit.find("failure_reward"), std::string::npos) << exit;
  EXPECT_NE(error_of([&] { reward("sleep 5"); }).find("took more than 0.3 s"), std::string::npos);
  EXPECT_NE(error_of([&] { reward("echo one"); }).find("printed no number in its last line 'one'"),
            std::string::npos);
  EXPECT_NE(error_of([&] { reward("true"); }).find("printed no number"), std::string::npos);
}

TEST(Program, TimeLimitKillsWhatItStarted) {
  TempDir dir;
  const auto begin = std::chrono::steady_clock::now();
  // The child of the shell holds its output open, and would write a file if it lived on.
  const ProgramEnd end =
      run_program({"/bin/sh", "-c", fmt::format("(sleep 1; echo > {}) & echo begun; wait", dir / "late")}, "",
                  std::chrono::milliseconds(200));
  EXPECT_TRUE(end.timed_out);
  EXPECT_EQ(end.output, "begun\n");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(900));
  // One that ends in time leaves nothing behind either.
  const ProgramEnd left =
      run_program({"/bin/sh", "-c", fmt::format("(sleep 1; echo > {}) & echo 1", dir / "late")}, "",
                  std::chrono::seconds(5));
  EXPECT_TRUE(left.well());
  EXPECT_EQ(left.output, "1\n");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(1100));
  ::usleep(1'300'000);
  EXPECT_FALSE(std::filesystem::exists(dir / "late"));
}

TEST(Program, LargeInputAndOutput) {
  const std::string input(3'000'000, 'x');
  const ProgramEnd end = run_program({"/bin/sh", "-c", "wc -c; yes | head -c 300000; echo >&2 note"}, input,
                                     std::chrono::seconds(10));
  EXPECT_TRUE(end.well());
  EXPECT_EQ(end.output.substr(0, 8), "3000000\n");
  EXPECT_EQ(end.output.size(), 65536u);
  EXPECT_EQ(end.errors, "note\n");
  EXPECT_NE(error_of([] {
              run_program({"/no/such/program"}, "", std::chrono::seconds(1));
            }).find("cannot be started"),
            std::string::npos);
}

TEST(Math, FuzzedAnswersEndSoon) {
  const std::vector<std::string> texts = {"\\frac{1}{2} + \\sqrt[3]{x^2}",
                                          "(1, 2) \\cup [3, \\infty)",
                                          "\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}",
                                          "x = 1{,}234.5\\text{ cm}^2, y < 50\\%",
                                          "\\sin^2 x + 5! - \\binom{5}{2}",
                                          "1 1/2 \\pm 0.\\overline{3}",
                                          "|{-3}| + \\lfloor 2.5 \\rfloor",
                                          "New York"};
  testing::Mutator mutator(33, texts,
                           {"\\frac",   "\\sqrt", "{",      "}",          "(",       ")",
                            "\\{",      "^",      "_",      "\\left",     "\\text{", "\\begin{",
                            "matrix}",  "\\\\",   "&",      ",",          "=",       "<",
                            "!",        "|",      "%",      "9999999999", "e99",     "\\overline{",
                            "\\pm",     "-",      "^{",     "π",          "\xff",    std::string(1, '\0'),
                            "\\boxed{", "1e-300", "\\log_", "²"});
  const auto begin = std::chrono::steady_clock::now();
  int equal = 0;
  const int count = 20000 * testing::times();
  for (int i = 0; i < count; ++i) {
    const std::string text = mutator.next();
    const bool same = answers_equal(texts[static_cast<size_t>(i) % texts.size()], text);
    equal += same;
    EXPECT_EQ(same, answers_equal(text, texts[static_cast<size_t>(i) % texts.size()])) << text;
    EXPECT_TRUE(text.find_first_not_of(" .$\n\t\r") == std::string::npos || answers_equal(text, text))
        << text;
    last_boxed(text);
    last_tagged(text);
    solves_countdown(text, {1, 2}, 3);
  }
  EXPECT_GT(equal, 0);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20) * testing::times());
}

}  // namespace
}  // namespace megatron::rl
