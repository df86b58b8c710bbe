#include <gtest/gtest.h>

#include "unit/cli/run_command.h"

// Settings that show in what a run of training does.
namespace megatron {
namespace {

Outcome pretrain(const std::vector<std::string>& more) {
  std::vector<std::string> args = {"pretrain"};
  for (const char* word :
       {"model.num_layers=1", "model.hidden_size=16", "model.num_attention_heads=2", "model.seq_length=8",
        "model.vocab_size=50", "train.micro_batch_size=1", "train.train_iters=4", "optimizer.lr=0.01",
        "dataset.mock_data=true", "run.device=cpu", "logger.log_interval=1"})
    args.emplace_back(word);
  args.insert(args.end(), more.begin(), more.end());
  return run_command(args);
}

TEST(Pretrain, StopsAtWhatIsNotANumber) {
  const std::vector<std::string> far = {"optimizer.lr=1e38", "optimizer.clip_grad=0"};
  const auto stopped = [&](const std::string& more, const char* why) {
    std::vector<std::string> words = far;
    words.push_back(more);
    const Outcome outcome = pretrain(words);
    EXPECT_EQ(outcome.code, 3) << outcome.out;
    EXPECT_NE(outcome.err.find(why), std::string::npos) << outcome.err;
  };
  stopped("ddp.check_for_nan_in_grad=false", "the loss is not finite");
  stopped("rerun_state_machine.check_for_nan_in_loss=false", "the gradient is not finite");
  const Outcome goes_on = pretrain({far[0], far[1], "--no-check-for-nan-in-loss-and-grad"});
  EXPECT_EQ(goes_on.code, 0) << goes_on.err;
  EXPECT_NE(goes_on.out.find("iteration        4/       4"), std::string::npos) << goes_on.out;
}

TEST(Pretrain, AsManyRanksAsWereStarted) {
  const Outcome outcome = pretrain({"run.world_size=2"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.err.find("1 processes of 1 ranks were started; leave it out"), std::string::npos)
      << outcome.err;
}

}  // namespace
}  // namespace megatron
