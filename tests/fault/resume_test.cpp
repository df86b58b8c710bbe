#include "fault/training.h"
#include "megatron/checkpoint/directory.h"

namespace megatron::testing {
namespace {

TEST(Resume, GoesOnBitForBit) {
  const std::vector<std::vector<std::string>> layouts = {
      {},
      {"--async-save"},
      {"--async-save", "--ranks", "4", "-tp", "2", "-pp", "2"},
      {"--async-save", "--ranks", "4", "--use-megatron-fsdp", "--data-parallel-sharding-strategy",
       "optim_grads_params", "--use-distributed-optimizer"},
      {"--ranks", "4", "--mtp-num-layers", "2", "--position-embedding-type", "rope", "--use-megatron-fsdp",
       "--data-parallel-sharding-strategy", "optim_grads", "--use-distributed-optimizer"},
      {"--ranks", "2", "--model-type", "t5", "--vocab-extra-ids", "10", "--use-megatron-fsdp",
       "--data-parallel-sharding-strategy", "optim_grads", "--use-distributed-optimizer"},
      {"--ranks", "4", "-pp", "2", "--mtp-num-layers", "2", "--position-embedding-type", "rope",
       "--use-megatron-fsdp", "--data-parallel-sharding-strategy", "optim_grads_params",
       "--use-distributed-optimizer"}};
  for (const std::vector<std::string>& layout : layouts) {
    SCOPED_TRACE(layout.empty() ? "one rank" : layout.back());
    TempDir dir;
    const std::string folder = dir / "c";
    ASSERT_EQ(train(in_folder(folder, layout)).code, 0);
    const auto expected = contents(folder + "/iter_0000010");
    EXPECT_EQ(expected, undisturbed(layout));
    forget_the_end(folder);
    expect_said(train(in_folder(folder, layout)), 0, "loaded " + folder + "/iter_0000005");
    EXPECT_EQ(contents(folder + "/iter_0000010"), expected);
  }
}

TEST(Resume, AnotherScheduleIsToldAndRefused) {
  TempDir dir;
  const std::string folder = dir / "c";
  ASSERT_EQ(train(in_folder(folder)).code, 0);
  expect_said(train({"--load", folder, "--train-iters", "12"}), 1,
              "its run had another schedule: lr_decay_steps 48 (the checkpoint has 40); give "
              "--override-opt_param-scheduler");
  expect_said(train({"--load", folder, "--lr", "2e-2"}), 1, "max_lr 0.02 (the checkpoint has 0.01)");
  expect_said(train({"--load", folder, "--train-iters", "12", "--override-opt_param-scheduler"}), 0,
              "the schedule is another than the checkpoint's: lr_decay_steps 48");
  const Outcome followed = train({"--load", folder, "--train-iters", "12", "--log-interval", "1",
                                  "--use-checkpoint-opt_param-scheduler"});
  expect_said(followed, 0, "the checkpoint's schedule is followed");
  EXPECT_NE(followed.out.find("learning rate: 0.000000E+00"), std::string::npos) << followed.out;
  // Where the rate does not depend on it, there is nothing to refuse.
  ASSERT_EQ(train({"--save", dir / "d", "--lr-decay-style", "constant"}).code, 0);
  EXPECT_EQ(train({"--load", dir / "d", "--lr-decay-style", "constant", "--train-iters", "12"}).code, 0);
  EXPECT_EQ(train({"--load", folder, "--train-iters", "12", "--no-load-optim"}).code, 0);
}

TEST(Resume, AStepByItsNumber) {
  TempDir dir;
  const std::string folder = dir / "c";
  ASSERT_EQ(train(in_folder(folder)).code, 0);
  expect_said(train({"--load", folder, "--ckpt-step", "5"}), 0, "loaded " + folder + "/iter_0000005");
  expect_said(train({"--load", folder, "--ckpt-step", "7"}), 1,
              "--ckpt-step 7: " + folder + "/iter_0000007 is no checkpoint");
}

TEST(Resume, WeightsToBeginWith) {
  TempDir dir;
  const std::string folder = dir / "c";
  ASSERT_EQ(train(in_folder(folder)).code, 0);
  const Outcome fresh = train({"--load", dir / "new", "--pretrained-checkpoint", folder});
  expect_said(fresh, 0, "weights from " + folder + "/iter_0000010");
  EXPECT_NE(fresh.out.find("iteration        1/      10"), std::string::npos) << fresh.out;
  const Outcome finetuned = train({"--load", folder, "--finetune", "--lr", "1e-4"});
  EXPECT_EQ(finetuned.code, 0) << finetuned.err;
  EXPECT_EQ(finetuned.out.substr(finetuned.out.find("lm loss"), 22),
            fresh.out.substr(fresh.out.find("lm loss"), 22));
  expect_said(train({"--load", folder, "--pretrained-checkpoint", dir / "absent"}), 0, "loaded");
  expect_said(train({"--pretrained-checkpoint", dir / "absent"}), 1, "there is no checkpoint");
}

// A run that Megatron-LM saved goes on as ours does: weights, optimizer, iteration, samples.
TEST(Resume, MegatronsOwnFormat) {
  TempDir dir;
  const std::string folder = dir / "c";
  ASSERT_EQ(train(in_folder(folder)).code, 0);
  const auto expected = contents(folder + "/iter_0000010");
  forget_the_end(folder);
  const Outcome exported =
      run_command({"convert", "export", "--ckpt", folder, "--megatron", "--out", dir / "theirs"});
  ASSERT_EQ(exported.code, 0) << exported.err;
  expect_said(train({"--load", dir / "theirs", "--save", dir / "d", "--ckpt-format", "torch_dist"}), 0,
              "loaded " + dir / "theirs/iter_0000005");
  EXPECT_EQ(contents(dir / "d/iter_0000010"), expected);
  // Under another layout, and without what a rank would have to ask Megatron-LM for.
  expect_said(train({"--load", dir / "theirs", "--ranks", "2", "-tp", "2", "--finetune"}), 0, "loaded");
  // Nothing that another program wrote is replaced.
  expect_said(train({"--save", dir / "theirs", "--save-interval", "5"}), 0,
              "is there already and was not saved by this program");
}

TEST(Resume, StrictnessDecidesAboutTensorsOfOneSide) {
  TempDir dir;
  const std::string folder = dir / "c";
  ASSERT_EQ(train(in_folder(folder)).code, 0);
  const std::vector<std::string> fewer = {"--load", folder, "--finetune", "--disable-bias-linear",
                                          "--dist-ckpt-strictness"};
  const auto with = [](std::vector<std::string> args, const char* level) {
    args.emplace_back(level);
    return train(args);
  };
  EXPECT_EQ(with(fewer, "assume_ok_unexpected").code, 0);
  expect_said(with(fewer, "log_unexpected"), 0, "tensors of the checkpoint are not the model's");
  expect_said(with(fewer, "raise_unexpected"), 1, "tensors that the model has not: decoder.layers.0.");
  ASSERT_EQ(train({"--save", dir / "d", "--disable-bias-linear"}).code, 0);
  const std::vector<std::string> more = {"--load", dir / "d", "--finetune", "--dist-ckpt-strictness"};
  expect_said(with(more, "assume_ok_unexpected"), 1, "linear_qkv.bias: it is missing");
  expect_said(with(more, "raise_all"), 1, "linear_qkv.bias: it is missing");
  expect_said(with(more, "log_all"), 0, "are not in the checkpoint and keep their initial values");
  EXPECT_EQ(with(more, "ignore_all").code, 0);
}

// The model comes from the checkpoint, ours or Megatron-LM's, whatever the command line says of it.
TEST(Resume, TheCheckpointSaysWhatModelItIs) {
  TempDir dir;
  const std::string folder = dir / "c";
  ASSERT_EQ(train(in_folder(folder, {"--swiglu", "--num-layers", "3"})).code, 0);
  ASSERT_EQ(run_command({"convert", "export", "--ckpt", folder, "--megatron", "--out", dir / "theirs"}).code,
            0);
  for (const std::string& from : {folder, dir / "theirs"}) {
    EXPECT_EQ(train({"--load", from}).code, 1);
    expect_said(train({"--load", from, "--use-checkpoint-args"}), 0,
                "--num-layers 2: the checkpoint " + from + " has 3");
  }
  EXPECT_EQ(train({"--load", dir / "absent", "--use-checkpoint-args"}).code, 0);
}

TEST(Resume, WithoutTheOptimizer) {
  TempDir dir;
  ASSERT_EQ(train({"--save", dir / "c", "--no-save-optim", "--save-interval", "5"}).code, 0);
  forget_the_end(dir / "c");
  expect_said(train({"--load", dir / "c"}), 1, "give --no-load-optim");
  expect_said(train({"--load", dir / "c", "--no-load-optim"}), 0, "loaded");
  // The saved optimizer kept less, so only optimizer state is missing.
  ASSERT_EQ(train({"--save", dir / "d", "--optimizer", "lion", "--save-interval", "5"}).code, 0);
  forget_the_end(dir / "d");
  expect_said(train({"--load", dir / "d", "--optimizer", "adam"}), 1,
              "does not fit the optimizer, which is another than that of its run; give --no-load-optim");
  expect_said(train({"--load", dir / "d", "--optimizer", "adam", "--no-load-optim"}), 0, "loaded");
}

TEST(Retention, KeepsWhatIsAskedFor) {
  const auto kept = [](const std::vector<std::string>& further) {
    TempDir dir;
    std::vector<std::string> args = {"--save", dir / "c", "--save-interval", "2"};
    args.insert(args.end(), further.begin(), further.end());
    EXPECT_EQ(train(args).code, 0);
    std::vector<int64_t> iterations;
    for (const CheckpointPlace& place : list_checkpoints(dir / "c")) iterations.push_back(place.iteration);
    return iterations;
  };
  using List = std::vector<int64_t>;
  EXPECT_EQ(kept({}), (List{2, 4, 6, 8, 10}));
  EXPECT_EQ(kept({"--most-recent-k", "2"}), (List{8, 10}));
  EXPECT_EQ(kept({"--most-recent-k", "2", "--async-save"}), (List{8, 10}));
  EXPECT_EQ(kept({"--save-retain-interval", "4"}), (List{4, 8, 10}));
  EXPECT_EQ(kept({"--save-retain-interval", "4", "--most-recent-k", "2"}), (List{4, 8, 10}));
}

TEST(NonPersistent, TheNewestOfBothCounts) {
  TempDir dir;
  const std::string folder = dir / "c";
  const std::vector<std::string> args = {"--non-persistent-save-interval", "3", "--non-persistent-ckpt-type",
                                         "global", "--async-save"};
  ASSERT_EQ(train(in_folder(folder, args)).code, 0);
  const auto expected = contents(folder + "/iter_0000010");
  EXPECT_EQ(list_checkpoints(folder + "/non_persistent").size(), 1u);
  forget_the_end(folder);
  expect_said(train(in_folder(folder, args)), 0, "loaded " + folder + "/non_persistent/iter_0000009");
  EXPECT_EQ(contents(folder + "/iter_0000010"), expected);
}

// Whoever goes back to before a non-persistent checkpoint and saves does not meet it again.
TEST(NonPersistent, IsLeftBehindByGoingBack) {
  TempDir dir;
  const std::string folder = dir / "c";
  const std::vector<std::string> further = {"--non-persistent-save-interval", "3",
                                            "--non-persistent-ckpt-type", "global"};
  ASSERT_EQ(train(in_folder(folder, further)).code, 0);
  std::filesystem::remove_all(folder + "/iter_0000010");
  ASSERT_EQ(list_checkpoints(folder + "/non_persistent").back().iteration, 9);
  // Back to 5, and no further than 7, which is saved.
  expect_said(train({"--load", folder, "--save", folder, "--ckpt-step", "5", "--exit-interval", "7"}), 0,
              "loaded " + folder + "/iter_0000005");
  ASSERT_EQ(latest_checkpoint(folder)->iteration, 7);
  ASSERT_EQ(list_checkpoints(folder + "/non_persistent").back().iteration, 9);
  expect_said(train(in_folder(folder, further)), 0, "loaded " + folder + "/iter_0000007");
}

TEST(SaveInterval, InMinutes) {
  const auto saved = [](const char* minutes) {
    TempDir dir;
    EXPECT_EQ(train({"--save", dir / "c", "--save-interval-in-mins", minutes, "--ranks", "2"}).code, 0);
    return list_checkpoints(dir / "c").size();
  };
  EXPECT_EQ(saved("1e-9"), 10u) << "every iteration takes longer";
  EXPECT_EQ(saved("60"), 1u) << "the last one alone";
}

}  // namespace
}  // namespace megatron::testing
