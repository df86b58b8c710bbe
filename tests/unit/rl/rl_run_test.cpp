#include "megatron/rl/rl_data.h"

#include <gtest/gtest.h>

#include <atomic>
#include <sstream>

#include "megatron/base/error.h"
#include "megatron/training/run/run.h"
#include "support/temp_dir.h"

// Whole runs that learn from rewards of a toy environment.
namespace megatron::rl {
namespace {

// Rewards the share of an answer's numbers that are even.
class EvenNumbers final : public Environment {
 public:
  EvenNumbers() : Environment("even_numbers") {}
  int64_t size() const override { return 10; }
  RolloutTask task(int64_t index) const override {
    return {.environment = name(), .index = index, .prompt = std::to_string(index) + " 3"};
  }
  int64_t validation_size() const override { return 4; }
  RolloutTask validation_task(int64_t index) const override { return task(index); }
  double reward(const RolloutTask&, const RolloutResponse& response) const override {
    ++rewarded;
    std::istringstream words(response.text);
    double even = 0, count = 0;
    for (int number; words >> number; ++count) even += number % 2 == 0;
    return count > 0 ? even / count : 0;
  }

  mutable std::atomic<int64_t> rewarded = 0;
};

std::shared_ptr<const EnvironmentSet> set_of(std::shared_ptr<const Environment> environment) {
  return std::make_shared<const EnvironmentSet>(
      std::vector<EnvironmentSet::Entry>{{.environment = std::move(environment)}});
}

constexpr std::string_view kModel =
    "--num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 12 --max-position-embeddings 12 "
    "--position-embedding-type rope --tokenizer-type NullTokenizer --vocab-size 15 --micro-batch-size 2 "
    "--hidden-dropout 0 --attention-dropout 0 --device cpu --init-method-std 0.1 ";
constexpr std::string_view kRewards =
    "--perform-rl-step --langrl-env-config given --grpo-prompts-per-step 4 --grpo-group-size 4 "
    "--global-batch-size 16 "
    "--grpo-iterations 1 --grpo-clamp-eps-lower 0.2 --grpo-clamp-eps-upper 0.2 "
    "--inference-dynamic-batching-buffer-size-gb 0.01 --calculate-per-token-loss ";

struct Steps : Callback {
  void on(RunEvent event, RunView& view) override {
    if (!view.is_first_rank()) return;
    if (event == RunEvent::eval_end) evaluations.push_back(view.evaluation->terms);
    if (event != RunEvent::step_end) return;
    const IterationReport& report = *view.report;
    losses[report.iteration] = report.loss;
    norms[report.iteration] = report.grad_norm;
    terms[report.iteration] = report.terms;
  }
  double term(int64_t iteration, const std::string& name) const {
    for (const LossTerm& term : terms.at(iteration))
      if (term.name == name) return term.value;
    ADD_FAILURE() << "there is no " << name;
    return 0;
  }
  std::map<int64_t, double> losses, norms;
  std::map<int64_t, std::vector<LossTerm>> terms;
  std::vector<std::vector<LossTerm>> evaluations;
};

Steps steps_of(const std::string& flags,
               std::shared_ptr<const EvenNumbers> environment = std::make_shared<const EvenNumbers>()) {
  auto steps = std::make_shared<Steps>();
  RunSpec spec = run_spec(std::string(kModel) + std::string(kRewards) + flags);
  spec.live_data = rollout_data(set_of(std::move(environment)));
  spec.callbacks = {steps};
  spec.log = Log(LogLevel::error);
  spec.out = nullptr;
  run(spec);
  return *steps;
}

constexpr const char* kReward = "rl/mean_reward";

TEST(RlRun, LearnsWhatIsRewarded) {
  const Steps steps = steps_of("--train-iters 25 --lr 1e-2 --lr-decay-style constant --eval-interval 25 ");
  EXPECT_LT(steps.term(1, kReward), 0.7);
  EXPECT_GT(steps.term(25, kReward), 0.9);
  ASSERT_EQ(steps.evaluations.size(), 1u);
  EXPECT_EQ(steps.evaluations[0][0].name, "even_numbers_eval_mean_reward");
  EXPECT_GT(steps.evaluations[0][0].value, 0.9);
  // The first iteration learns from its own policy's answers.
  EXPECT_NEAR(steps.term(1, "rl/pi_over_pi_old"), 1, 1e-5);
  EXPECT_NEAR(steps.term(1, "rl/kl_term"), 0, 1e-5);
  EXPECT_GT(steps.term(25, "rl/kl_term"), 1e-2);
}

// Whatever the layout, the same prompts are answered alike, and the same is learned from them; the third
// iteration has answers of the weights behind the second.
TEST(RlRun, LayoutsAgree) {
  const std::string flags = "--train-iters 3 --lr 1e-2 --eval-interval 0 --global-batch-size 8 ";
  const Steps one = steps_of(flags);
  EXPECT_NE(one.term(2, "rl/pi_over_pi_old"), 1);
  for (const char* layout :
       {"--ranks 2 --tensor-model-parallel-size 2", "--ranks 2", "--ranks 2 --pipeline-model-parallel-size 2",
        "--ranks 2 --context-parallel-size 2", "--ranks 4 --tensor-model-parallel-size 2 --sequence-parallel",
        "--ranks 2 --tensor-model-parallel-size 2 --rl-inference-tensor-model-parallel-size 1",
        "--ranks 2 --use-distributed-optimizer --overlap-param-gather --overlap-grad-reduce",
        "--rl-use-sequence-packing"}) {
    SCOPED_TRACE(layout);
    const Steps other = steps_of(flags + layout);
    for (const int64_t iteration : {1, 2, 3}) {
      EXPECT_NEAR(other.losses.at(iteration), one.losses.at(iteration), 2e-5);
      EXPECT_NEAR(other.norms.at(iteration), one.norms.at(iteration), 1e-4 * one.norms.at(iteration));
      ASSERT_EQ(other.terms.at(iteration).size(), one.terms.at(iteration).size());
      for (const LossTerm& term : one.terms.at(iteration))
        EXPECT_NEAR(other.term(iteration, term.name), term.value, 1e-4) << term.name;
    }
  }
}

// A run that is stopped goes on as if it had not been: between collections, within one, and with answers that
// lie behind the policy.
TEST(RlRun, GoesOnBitForBit) {
  for (const char* further :
       {"", "--rl-partial-rollouts --rl-generation-lag 1.5",
        "--ranks 2 --tensor-model-parallel-size 2 --rl-inference-logprobs-is-correction "
        "--rl-importance-sampling-truncation-coef 1.5 --rl-use-sequence-packing"})
    for (const char* stop : {"1", "2"}) {
      SCOPED_TRACE(fmt::format("{} stopped after {}", further, stop));
      megatron::testing::TempDir place;
      const std::string flags =
          fmt::format("--train-iters 4 --lr 1e-2 --eval-interval 0 --grpo-iterations 2 {} ", further);
      const std::string both = fmt::format("{} --save {} --load {} ", flags, place.path(), place.path());
      const Steps whole = steps_of(flags), first = steps_of(both + "--exit-interval " + stop),
                  rest = steps_of(both);
      EXPECT_EQ(std::to_string(first.norms.size()), stop);
      for (int64_t iteration = std::stoi(stop) + 1; iteration <= 4; ++iteration) {
        EXPECT_EQ(rest.losses.at(iteration), whole.losses.at(iteration));
        EXPECT_EQ(rest.norms.at(iteration), whole.norms.at(iteration));
        EXPECT_EQ(rest.terms.at(iteration), whole.terms.at(iteration));
      }
    }
}

// A run that goes on from an ordinary checkpoint is held to its weights, also behind a stop.
TEST(RlRun, IsHeldToTheCheckpointThatItLoaded) {
  megatron::testing::TempDir ordinary, place;
  const std::string schedule = "--lr 1e-2 --lr-decay-style constant --eval-interval 0 ";
  RunSpec spec = run_spec(fmt::format("{}{}--mock-data --global-batch-size 16 --train-iters 1 --save {}",
                                      kModel, schedule, ordinary.path()));
  spec.log = Log(LogLevel::error);
  spec.out = nullptr;
  run(spec);
  const std::string flags = schedule + "--train-iters 4 --grpo-kl-beta 0.1 ";
  const Steps whole = steps_of(fmt::format("{}--load {}", flags, ordinary.path())),
              first = steps_of(fmt::format("{}--load {} --save {} --exit-interval 3", flags, ordinary.path(),
                                           place.path())),
              rest = steps_of(fmt::format("{}--load {} --save {}", flags, place.path(), place.path()));
  EXPECT_NEAR(whole.term(2, "rl/kl_term"), 0, 1e-5);
  EXPECT_EQ(first.losses.at(3), whole.losses.at(3));
  EXPECT_EQ(rest.losses.at(4), whole.losses.at(4));
  EXPECT_EQ(rest.terms.at(4), whole.terms.at(4));
}

TEST(RlRun, FreesTheCacheWhileItLearns) {
  const std::string flags = "--train-iters 2 --lr 1e-2 --eval-interval 0 ";
  const Steps kept = steps_of(flags), freed = steps_of(flags + "--rl-kv-cache-management-mode recompute");
  EXPECT_EQ(freed.losses, kept.losses);
  EXPECT_EQ(freed.terms, kept.terms);
}

// Answers of one reward teach nothing: others take their places.
TEST(RlRun, FiltersGroupsOfOneReward) {
  const std::string flags =
      "--train-iters 1 --lr 1e-2 --eval-interval 0 --grpo-group-size 2 --grpo-prompts-per-step 8 "
      "--seq-length 5 ";
  EXPECT_GT(steps_of(flags).term(1, "rl/groups_of_one_reward"), 0);
  EXPECT_EQ(steps_of(flags + "--grpo-filter-groups-with-same-reward").term(1, "rl/groups_of_one_reward"), 0);
}

// A run that was killed before its first checkpoint finds its answers in the bank, and makes others anew.
TEST(RlRun, TakesAnswersFromTheBank) {
  megatron::testing::TempDir place;
  const std::string flags = fmt::format(
      "--lr 1e-2 --lr-decay-style constant --eval-interval 0 --ranks 2 --rl-durable-rollout-bank "
      "--rl-rollout-bank-dir {} ",
      place.path());
  const auto first = std::make_shared<const EvenNumbers>(), second = std::make_shared<const EvenNumbers>();
  const Steps killed = steps_of(flags + "--train-iters 2", first),
              again = steps_of(flags + "--train-iters 3 --rl-rollout-bank-max-bytes 100000000", second);
  EXPECT_EQ(first->rewarded, 2 * 16);
  EXPECT_EQ(second->rewarded, 16);
  for (const int64_t iteration : {1, 2}) {
    EXPECT_EQ(again.norms.at(iteration), killed.norms.at(iteration));
    EXPECT_EQ(again.terms.at(iteration), killed.terms.at(iteration));
  }
  // Those of another model do not count.
  EXPECT_THROW(steps_of(flags + "--train-iters 3 --ffn-hidden-size 96"), Error);
  EXPECT_THROW(steps_of(flags + "--train-iters 3 --weight-decay 0.5"), Error);
}

TEST(RlRun, RefusesWithAdvice) {
  const auto expect = [](const std::string& flags, const std::string& part) {
    try {
      steps_of("--train-iters 1 --lr 1e-2 --eval-interval 0 " + flags);
      ADD_FAILURE() << "not refused: " << flags;
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  };
  expect("--global-batch-size 12", "4 prompts x 4 answers x 1 iterations = 16 samples; use 16");
  expect("--rl-generation-lag 2", "--rl-partial-rollouts alone");
  expect("--seq-length 2", "its prompt has 2 tokens, and prompt and answer 2 at most");
  expect("--sft", "a run learns from rewards or from conversations");
}

}  // namespace
}  // namespace megatron::rl
