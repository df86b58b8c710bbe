#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "support/temp_dir.h"
#include "unit/cli/run_command.h"

// What pretrain and finetune say and refuse, as a user calls them.
namespace megatron {
namespace {

using testing::TempDir;

Outcome train(const std::string& command, const std::vector<std::string>& further) {
  std::vector<std::string> args = {command,       "--num-layers",
                                   "2",           "--hidden-size",
                                   "16",          "--num-attention-heads",
                                   "2",           "--seq-length",
                                   "8",           "--max-position-embeddings",
                                   "8",           "model.vocab_size=32",
                                   "--mock-data", "--micro-batch-size",
                                   "1",           "--global-batch-size",
                                   "2",           "--train-iters",
                                   "5",           "--lr",
                                   "1e-3",        "--device",
                                   "cpu"};
  args.insert(args.end(), further.begin(), further.end());
  return run_command(args);
}

TEST(Pretrain, LogsTheFirstTheLastAndEachIntervalsMeans) {
  const Outcome each = train("pretrain", {"--log-interval", "1"}),
                some = train("pretrain", {"--log-interval", "2"});
  const auto losses = [](const std::string& out) {
    std::vector<std::pair<int, double>> found;
    for (size_t at = 0; (at = out.find("] iteration", at)) != std::string::npos; ++at)
      found.emplace_back(std::stoi(out.substr(at + 11)),
                         std::stod(out.substr(out.find("lm loss: ", at) + 9)));
    return found;
  };
  const auto all = losses(each.out), few = losses(some.out);
  ASSERT_EQ(all.size(), 5u) << each.out;
  ASSERT_EQ(few.size(), 4u) << some.out;
  EXPECT_EQ(few[0], all[0]);
  EXPECT_EQ(few[1].first, 2);
  EXPECT_NEAR(few[1].second, (all[0].second + all[1].second) / 2, 2e-6);
  EXPECT_EQ(few[2].first, 4);
  EXPECT_NEAR(few[2].second, (all[2].second + all[3].second) / 2, 2e-6);
  EXPECT_EQ(few[3], all[4]);
}

TEST(Pretrain, TellsThatThereIsNoCheckpointYet) {
  TempDir folder;
  const Outcome outcome = train("pretrain", {"--load", folder / "absent"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("no checkpoint in " + (folder / "absent")), std::string::npos) << outcome.err;
}

// A run that is over says so, and what would make it go on.
TEST(Pretrain, TellsThatAllIsDone) {
  TempDir folder;
  ASSERT_EQ(train("pretrain", {"--save", folder / "c"}).code, 0);
  const Outcome outcome = train("pretrain", {"--load", folder / "c"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("all 5 iterations are done"), std::string::npos) << outcome.err;
  EXPECT_EQ(outcome.out, "");
}

// A requeued run that made experts of a dense checkpoint goes on from its own, with all states.
TEST(Pretrain, UpcyclingGoesOnFromWhatItSaved) {
  TempDir folder;
  ASSERT_EQ(train("pretrain", {"--save", folder / "dense"}).code, 0);
  const std::vector<std::string> experts = {
      "--num-experts",  "4", "--moe-use-upcycling", "--load", folder / "dense", "--save", folder / "experts",
      "--log-interval", "1"};
  const auto run = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = experts;
    words.insert(words.end(), more.begin(), more.end());
    return train("pretrain", words);
  };
  const auto last_line = [](const std::string& out) {
    const size_t at = out.find("lm loss: ", out.find("iteration        5/       5"));
    return at == std::string::npos ? "none: " + out : out.substr(at, 22);
  };
  const Outcome whole = run({"--finetune", "checkpoint.save=" + (folder / "whole")});
  ASSERT_EQ(whole.code, 0) << whole.err;
  const Outcome first = run({"--finetune", "--exit-interval", "2"}), second = run({"--finetune"});
  ASSERT_EQ(first.code, 0) << first.err;
  ASSERT_EQ(second.code, 0) << second.err;
  EXPECT_NE(first.err.find("loaded " + (folder / "dense")), std::string::npos) << first.err;
  EXPECT_NE(second.err.find("loaded " + (folder / "experts")), std::string::npos) << second.err;
  EXPECT_EQ(second.out.find("iteration        1/"), std::string::npos) << second.out;
  EXPECT_EQ(last_line(second.out), last_line(whole.out));
  // Experts of another folder are not taken for dense layers.
  const Outcome wrong = run({"--load", folder / "experts", "checkpoint.save=" + (folder / "other")});
  EXPECT_EQ(wrong.code, 1);
  EXPECT_NE(wrong.err.find("has experts already"), std::string::npos) << wrong.err;
}

// A run of no iterations saves what it began with, under any layout.
TEST(Pretrain, NoIterationsSaveTheWeights) {
  TempDir folder;
  const Outcome outcome = train("pretrain", {"train.train_iters=0", "--save", folder / "c"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(std::filesystem::exists(folder / "c/iter_0000000")) << outcome.err;
}

TEST(Pretrain, RefusesWhatTheJobIsNot) {
  Outcome outcome = train("pretrain", {"--world-size", "2"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.err.find("the job has 1 rank (1 process x --ranks 1); leave it out"), std::string::npos)
      << outcome.err;
  outcome = train("pretrain", {"~model.vocab_size"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.err.find("give --vocab-size N"), std::string::npos) << outcome.err;
}

TEST(Pretrain, StopsAtWhatIsNotANumber) {
  const std::vector<std::string> far = {"optimizer.lr=1e38", "optimizer.clip_grad=0", "--log-interval", "1"};
  const auto stopped = [&](const std::string& more, const char* why) {
    std::vector<std::string> words = far;
    words.push_back(more);
    const Outcome outcome = train("pretrain", words);
    EXPECT_EQ(outcome.code, 3) << outcome.out;
    EXPECT_NE(outcome.err.find(why), std::string::npos) << outcome.err;
  };
  stopped("ddp.check_for_nan_in_grad=false", "the loss is not finite");
  stopped("rerun_state_machine.check_for_nan_in_loss=false", "the gradient is not finite");
  std::vector<std::string> on = far;
  on.emplace_back("--no-check-for-nan-in-loss-and-grad");
  const Outcome goes_on = train("pretrain", on);
  EXPECT_EQ(goes_on.code, 0) << goes_on.err;
  EXPECT_NE(goes_on.out.find("iteration        5/       5"), std::string::npos) << goes_on.out;
}

TEST(Finetune, DoesNotBeginFromNothing) {
  TempDir folder;
  for (const std::vector<std::string>& load : {std::vector<std::string>{}, {"--load", folder / "absent"}}) {
    const Outcome outcome = train("finetune", load);
    EXPECT_EQ(outcome.code, 1) << outcome.err;
    EXPECT_NE(outcome.err.find("nothing to begin from"), std::string::npos) << outcome.err;
    EXPECT_EQ(outcome.out, "");
  }
}

// Before the first step, not after the last.
TEST(Pretrain, RefusesPlacesThatCannotBeWrittenAtOnce) {
  TempDir folder;
  std::ofstream(folder / "file") << "x";
  for (const std::vector<std::string>& place :
       {std::vector<std::string>{"--save", folder / "file/c"}, {"--metrics", folder / "file/m.jsonl"}}) {
    const Outcome outcome = train("pretrain", place);
    EXPECT_EQ(outcome.code, 1) << outcome.err;
    EXPECT_NE(outcome.err.find(place[0] + ": the folder " + (folder / "file")), std::string::npos)
        << outcome.err;
    EXPECT_EQ(outcome.out, "");
  }
  const Outcome no_file = train("pretrain", {"--metrics", folder / ""});
  EXPECT_EQ(no_file.code, 1);
  EXPECT_NE(no_file.err.find("is a folder; name a file in it"), std::string::npos) << no_file.err;
  EXPECT_EQ(train("pretrain", {"--metrics", folder / "new/m.jsonl", "--save", folder / "new/c"}).code, 0);
  EXPECT_TRUE(std::filesystem::exists(folder / "new/m.jsonl"));
}

}  // namespace
}  // namespace megatron
