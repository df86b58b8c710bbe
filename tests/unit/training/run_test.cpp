#include "megatron/training/run/run.h"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <mutex>
#include <thread>

#include "fault/odd_disks.h"
#include "megatron/base/error.h"
#include "megatron/comm/patience.h"
#include "megatron/training/run/rank_launch.h"
#include "support/temp_dir.h"

namespace megatron {
namespace {

constexpr std::string_view kTiny =
    "--num-layers 2 --hidden-size 16 --num-attention-heads 2 --seq-length 8 --max-position-embeddings 8 "
    "--vocab-size 32 --make-vocab-size-divisible-by 1 --micro-batch-size 1 --global-batch-size 4 --lr 1e-3 "
    "--mock-data --device cpu --ranks 2 --tensor-model-parallel-size 2 --attention-dropout 0.1 ";

// What happened on the first rank, and the losses.
struct Record : Callback {
  void on(RunEvent event, RunView& view) override {
    if (act) act(event, view);
    if (!view.is_first_rank()) return;
    constexpr const char* names[] = {"start", "<", ">", "(", ")", "[", "]", "save", "end"};
    events += std::string(names[static_cast<int>(event)]) + " ";
    if (event == RunEvent::step_end) losses[view.report->iteration] = view.report->loss;
    if (event == RunEvent::step_end) rates[view.report->iteration] = view.report->learning_rate;
    if (event == RunEvent::step_end) batches.push_back(view.report->global_batch_size);
  }
  std::string events;
  std::map<int64_t, double> losses, rates;
  std::vector<int64_t> batches;
  std::function<void(RunEvent, RunView&)> act;  // on every rank
};

RunEnd train(const std::string& flags, const std::shared_ptr<Record>& record) {
  RunSpec spec = run_spec(std::string(kTiny) + flags);
  spec.callbacks = {record};
  spec.log = Log(LogLevel::error);
  spec.out = nullptr;
  return run(spec);
}

TEST(Run, EventsComeInOrder) {
  testing::TempDir folder;
  auto record = std::make_shared<Record>();
  const RunEnd end =
      train(fmt::format("--train-iters 3 --eval-interval 2 --eval-iters 2 --save {} --save-interval 2",
                        folder.path()),
            record);
  EXPECT_EQ(record->events, "start < > < > ( ) save < > ( ) [ ] end ");
  EXPECT_EQ(end.reason, RunEnd::Reason::finished);
  EXPECT_EQ(end.state.iteration, 3);
  EXPECT_EQ(end.state.consumed_samples, 12);
  EXPECT_EQ(end.state.validated_samples, 16);
}

TEST(Run, ExitConditionsSaveAndTheNextRunGoesOn) {
  testing::TempDir folder;
  auto whole = std::make_shared<Record>(), parts = std::make_shared<Record>();
  train("--train-iters 6 --lr-decay-style cosine", whole);
  const std::string place =
      fmt::format("--train-iters 6 --lr-decay-style cosine --save {0} --load {0} ", folder.path());
  RunEnd end = train(place + "--exit-interval 2", parts);
  EXPECT_EQ(end.reason, RunEnd::Reason::interval);
  EXPECT_EQ(end.text(), "stopped by --exit-interval after iteration 2, which is saved");
  end = train(place + "--exit-duration-in-mins 1e-9", parts);
  EXPECT_EQ(end.reason, RunEnd::Reason::duration);
  EXPECT_EQ(end.state.iteration, 3);
  parts->act = [](RunEvent event, RunView& view) {
    if (event == RunEvent::step_end && view.world.rank() == 1) view.stop();  // one rank suffices
  };
  end = train(place, parts);
  EXPECT_EQ(end.reason, RunEnd::Reason::requested);
  EXPECT_EQ(end.state.iteration, 4);
  parts->act = [](RunEvent event, RunView& view) {
    if (event == RunEvent::step_start && view.is_first_rank()) std::raise(SIGTERM);
  };
  end = train(place, parts);
  EXPECT_EQ(end.text(), "stopped by SIGTERM after iteration 5, which is saved");
  parts->act = {};
  end = train(place, parts);
  EXPECT_EQ(end.reason, RunEnd::Reason::finished);
  EXPECT_EQ(parts->losses, whole->losses);  // to the bit
}

// A run is refused at its start where evaluation data runs out, also that of the evaluation at its end.
TEST(Run, EvaluationsHaveTheirSamples) {
  const auto train_with = [](int64_t samples, const std::string& flags) {
    const auto tokens = [](int64_t, int64_t before, int64_t index) {
      return std::vector<int64_t>(9, (before + index) % 32);
    };
    RunSpec spec = run_spec(std::string(kTiny) + "--train-iters 3 --eval-interval 2 " + flags);
    spec.data = [&, samples](const Config&) {
      return RunData{.train = token_source(8, -1, tokens),
                     .validation = {{"own", token_source(8, samples, tokens)}},
                     .test = token_source(8, samples, tokens)};
    };
    spec.log = Log(LogLevel::error);
    spec.out = nullptr;
    try {
      run(spec);
      return std::string();
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
  };
  EXPECT_EQ(train_with(16, "--eval-iters 2"), "");
  const std::string few = train_with(15, "--eval-iters 2");
  EXPECT_NE(few.find("the own data has 15 samples and the run needs 16"), std::string::npos) << few;
  EXPECT_TRUE(few.ends_with("or --eval-iters 1")) << few;
  EXPECT_EQ(train_with(15, "--eval-iters 1"), "");
  EXPECT_EQ(train_with(15, "--eval-iters 2 --skip-train"), "");
  EXPECT_EQ(train_with(12, "--eval-iters 3 --start-eval-at-iter 3"), "");
  const std::string test = train_with(15, "--eval-iters 4 --full-validation");
  EXPECT_NE(test.find("the test data has 15 samples and the run needs 16"), std::string::npos) << test;
  EXPECT_EQ(train_with(15, "--eval-iters 3 --full-validation"), "");
}

// A run that is done and started again evaluates once more.
TEST(Run, EvaluationsBeginAnewWhereDataEnds) {
  testing::TempDir folder;
  const auto tokens = [](int64_t, int64_t before, int64_t index) {
    require(before + index < 8, "there are 8 samples");
    return std::vector<int64_t>(9, before + index);
  };
  std::vector<double> losses;
  auto record = std::make_shared<Record>();
  record->act = [&](RunEvent event, RunView& view) {
    if (event == RunEvent::eval_end && view.is_first_rank()) losses.push_back(view.evaluation->loss);
  };
  for (int i = 0; i < 2; ++i) {
    RunSpec spec =
        run_spec(fmt::format("{} --train-iters 2 --eval-interval 2 --eval-iters 2 --save {} --load {}", kTiny,
                             folder.path(), folder.path()));
    spec.data = [&](const Config&) {
      return RunData{.train = token_source(8, 8, tokens),
                     .validation = {{"own", token_source(8, 8, tokens)}}};
    };
    spec.callbacks = {record};
    spec.log = Log(LogLevel::error);
    spec.out = nullptr;
    EXPECT_EQ(run(spec).state.iteration, 2);
  }
  ASSERT_EQ(losses.size(), 2u);
  EXPECT_EQ(losses[0], losses[1]);
}

// What goes for the last save does so beside the evaluation that follows.
TEST(Run, DeletesBesideItsLastEvaluation) {
  testing::TempDir folder;
  const auto there = [&](const char* name) { return std::filesystem::exists(folder / name); };
  bool held = false, deleted = false;
  auto record = std::make_shared<Record>();
  record->act = [&](RunEvent event, RunView& view) {
    if (event != RunEvent::eval_start || view.state.iteration != 5) return;
    for (Patience minute(std::chrono::minutes(1)); there("iter_0000004.removed") && !minute.over();)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    deleted = there("iter_0000005") && !there("iter_0000004.removed");
  };
  std::thread([&] {
    // The folder that went before is still there when the last save begins.
    held = testing::answer_calls({__NR_unlinkat, __NR_rmdir}, [&] {
      for (Patience minute(std::chrono::minutes(1)); !there("iter_0000005") && !minute.over();)
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      return 0;
    });
    if (held)
      train(
          fmt::format("--tensor-model-parallel-size 1 --ranks 1 --train-iters 5 --save {} --save-interval 2 "
                      "--most-recent-k 1 --eval-interval 3 --eval-iters 1",
                      folder.path()),
          record);
  }).join();
  if (!held) GTEST_SKIP() << "this kernel does not let a process slow itself down";
  EXPECT_TRUE(deleted);
}

// Frozen layers have losses and nothing else: the weights stay as they were drawn, also in a checkpoint.
TEST(Run, FrozenLayersLearnNothing) {
  testing::TempDir folder;
  const std::string plain = "--attention-dropout 0 --hidden-dropout 0 --train-iters 4 ";
  auto learning = std::make_shared<Record>(), frozen = std::make_shared<Record>(),
       parts = std::make_shared<Record>();
  train(plain, learning);
  train(plain + "--freeze-all-layers", frozen);
  EXPECT_NEAR(frozen->losses[1], learning->losses[1], 1e-12);
  EXPECT_NE(frozen->losses[2], learning->losses[2]);
  EXPECT_EQ(frozen->losses.size(), 4u);
  EXPECT_EQ(frozen->rates[2], 0);
  const std::string place =
      fmt::format("{0}--freeze-all-layers --save {1} --load {1} ", plain, folder.path());
  train(place + "--exit-interval 2", parts);
  EXPECT_EQ(train(place, parts).state.iteration, 4);
  EXPECT_EQ(parts->losses, frozen->losses);  // to the bit
}

// Skipped iterations consume data and do not move the schedule.
TEST(Run, IterationsToSkip) {
  auto all = std::make_shared<Record>(), some = std::make_shared<Record>();
  train("--train-iters 5 --lr-decay-style linear", all);
  const RunEnd end = train("--train-iters 5 --lr-decay-style linear --iterations-to-skip 1 3", some);
  EXPECT_EQ(end.state.consumed_samples, 20);
  EXPECT_EQ(end.state.skipped_samples, 8);
  EXPECT_EQ(some->losses.size(), 3u);
  EXPECT_EQ(some->losses.at(1), all->losses.at(1));
  EXPECT_EQ(some->rates.at(3), all->rates.at(2));
  EXPECT_EQ(some->rates.at(5), all->rates.at(3));
}

// A run that ends between skipped iterations goes on with those that are left, by the same rates, to the bit;
// what is skipped may also be the next iteration.
TEST(Run, IterationsToSkipBehindACheckpoint) {
  const std::string plain = "--train-iters 7 --lr-decay-style linear --iterations-to-skip 1 4 6 ";
  auto whole = std::make_shared<Record>();
  const RunEnd wanted = train(plain, whole);
  EXPECT_EQ(whole->losses.size(), 4u);
  for (const int stop : {1, 3, 4}) {
    testing::TempDir folder;
    auto parts = std::make_shared<Record>();
    const std::string place = fmt::format("{0}--save {1} --load {1} ", plain, folder.path());
    EXPECT_EQ(train(place + fmt::format("--exit-interval {}", stop), parts).state.iteration, stop);
    const RunEnd end = train(place, parts);
    EXPECT_EQ(parts->losses, whole->losses) << stop;
    EXPECT_EQ(parts->rates, whole->rates) << stop;
    EXPECT_EQ(end.state.skipped_samples, wanted.state.skipped_samples) << stop;
    EXPECT_EQ(end.state.consumed_samples, wanted.state.consumed_samples) << stop;
  }
}

// SOAP's factors, bases and moments are saved: a run that was stopped ends with the same bits.
TEST(Run, SoapGoesOn) {
  testing::TempDir folder;
  const std::string plain = "--train-iters 5 --optimizer soap --use-distributed-optimizer --bf16 ";
  auto whole = std::make_shared<Record>(), parts = std::make_shared<Record>();
  train(plain, whole);
  EXPECT_LT(whole->losses.at(5), whole->losses.at(1));
  const std::string place = fmt::format("{0}--save {1} --load {1} ", plain, folder.path());
  train(place + "--exit-interval 3", parts);
  train(place, parts);
  EXPECT_EQ(parts->losses, whole->losses);
}

// Each phase leaves a checkpoint, behind which the next run reads its own data from the beginning.
TEST(Run, PhasesBeginTheirDataAnew) {
  testing::TempDir folder;
  std::mutex mutex;
  std::map<int64_t, int64_t> consumed;  // before each iteration
  std::vector<std::string> ends;
  for (int phase = 0; phase < 3; ++phase) {
    RunSpec spec =
        run_spec(std::string(kTiny) +
                 fmt::format("--train-iters 5 --phase-transition-iterations 4,2 --save {0} --load {0}",
                             folder.path()));
    spec.data = [&](const Config&) {
      return RunData{.train = token_source(8, -1, [&](int64_t iteration, int64_t before, int64_t index) {
                       const std::lock_guard lock(mutex);
                       consumed[iteration] = before;
                       return std::vector<int64_t>(9, (before + index) % 32);
                     })};
    };
    spec.log = Log(LogLevel::error);
    spec.out = nullptr;
    ends.push_back(run(spec).text());
  }
  EXPECT_EQ(consumed, (std::map<int64_t, int64_t>{{0, 0}, {1, 4}, {2, 0}, {3, 4}, {4, 0}}));
  EXPECT_EQ(ends[0], "stopped by --phase-transition-iterations after iteration 2, which is saved");
  EXPECT_EQ(ends[1], "stopped by --phase-transition-iterations after iteration 4, which is saved");
  EXPECT_EQ(ends[2], "");
}

// --use-mp-args-from-checkpoint-args takes the layout as well.
TEST(Run, CheckpointsGiveTheirLayout) {
  testing::TempDir folder;
  const std::string place = fmt::format("--save {0} --load {0} ", folder.path());
  train("--train-iters 1 " + place, std::make_shared<Record>());
  const auto sizes = [&](const std::string& flags) {
    RunSpec spec = run_spec(std::string(kTiny) + "--train-iters 1 --tensor-model-parallel-size 1 " +
                            "--pipeline-model-parallel-size 2 --use-checkpoint-args " + place + flags);
    spec.log = Log(LogLevel::error);
    const ParallelConfig layout = resolve_run(spec, launch_place()).config.parallel;
    return std::pair(layout.tensor_model_parallel_size, layout.pipeline_model_parallel_size);
  };
  EXPECT_EQ(sizes(""), std::pair(int64_t{1}, int64_t{2}));
  EXPECT_EQ(sizes("--use-mp-args-from-checkpoint-args"), std::pair(int64_t{2}, int64_t{1}));
}

TEST(Run, BatchesGrow) {
  auto record = std::make_shared<Record>();
  RunSpec spec = run_spec(std::string(kTiny) + "--train-samples 20 --rampup-batch-size 2 1 6");
  spec.callbacks = {record};
  spec.log = Log(LogLevel::error);
  spec.out = nullptr;
  const RunEnd end = run(spec);
  EXPECT_EQ(record->batches, (std::vector<int64_t>{2, 2, 3, 4, 4, 4}));
  EXPECT_EQ(end.state.consumed_samples, 19);
}

// Seven sequences on two replicas are six, in evaluations too.
TEST(Run, BatchesAreMadeSmaller) {
  auto record = std::make_shared<Record>();
  const RunEnd end = train(
      "--tensor-model-parallel-size 1 --global-batch-size 7 --train-iters 2 "
      "--decrease-batch-size-if-needed --eval-interval 2 --eval-iters 1",
      record);
  EXPECT_EQ(record->batches, (std::vector<int64_t>{6, 6}));
  EXPECT_EQ(end.state.validated_samples, 6);
}

TEST(Run, EvaluatesOnly) {
  auto record = std::make_shared<Record>();
  const RunEnd end = train("--train-iters 5 --skip-train --eval-interval 1 --eval-iters 1", record);
  EXPECT_EQ(record->events, "start ( ) [ ] end ");
  EXPECT_EQ(end.state.iteration, 0);
}

// Other batches of an evaluation give the mean of the same samples.
TEST(Run, EvaluationHasItsOwnBatches) {
  std::vector<double> losses;
  for (const char* flags : {"--eval-iters 4", "--eval-iters 1 --eval-global-batch-size 16",
                            "--eval-iters 2 --eval-global-batch-size 8 --eval-micro-batch-size 4"}) {
    auto record = std::make_shared<Record>();
    record->act = [&](RunEvent event, RunView& view) {
      if (event == RunEvent::eval_end && view.is_first_rank()) losses.push_back(view.evaluation->loss);
    };
    train(fmt::format("--train-iters 1 --eval-interval 1 {}", flags), record);
  }
  ASSERT_EQ(losses.size(), 3u);
  EXPECT_NEAR(losses[1], losses[0], 1e-6);
  EXPECT_NEAR(losses[2], losses[0], 1e-6);
}

TEST(Run, CallbacksKeepStateAndAskForCheckpoints) {
  testing::TempDir folder;
  auto record = std::make_shared<Record>();
  record->act = [](RunEvent event, RunView& view) {
    if (event == RunEvent::step_end && view.state.iteration == 2 && view.world.rank() == 1) view.save();
  };
  train(fmt::format("--train-iters 4 --save {}", folder.path()), record);
  EXPECT_EQ(record->events, "start < > < > save < > < > end ");
}

TEST(Run, ExceptionsOfCallbacksEndIt) {
  auto record = std::make_shared<Record>();
  record->act = [](RunEvent event, RunView& view) {
    if (event == RunEvent::step_end && view.world.rank() == 1) throw Error("the callback's own fault");
  };
  EXPECT_THROW(train("--train-iters 2", record), Error);
}

// A planted error that passes ends the run at once; one that stays is left to another machine.
TEST(Run, ResultsAreComputedAgain) {
  testing::TempDir folder;
  auto record = std::make_shared<Record>();
  const std::string mode = "--train-iters 6 --rerun-mode validate_results --error-injection-rate 2 ";
  RunEnd end = train(mode + "--error-injection-type transient_error", record);
  EXPECT_EQ(end.exit_code(), 17);
  const int64_t at = end.state.iteration;  // before the iteration in question
  EXPECT_GE(at, 1);
  EXPECT_LT(at, 6);

  const std::string place = fmt::format("--save {0} --load {0} ", folder.path());
  end = train(mode + place + "--error-injection-type persistent_error", record);
  EXPECT_EQ(end.exit_code(), 16);
  EXPECT_EQ(end.state.iteration, at);
  EXPECT_TRUE(end.saved);
  end = train(mode + place + "--error-injection-type persistent_error", record);
  EXPECT_EQ(end.exit_code(), 16) << "the same devices cannot tell";

  auto whole = std::make_shared<Record>(), checked = std::make_shared<Record>();
  train("--train-iters 4", whole);
  end = train("--train-iters 4 --rerun-mode report_stats", checked);
  EXPECT_EQ(end.exit_code(), 0);
  EXPECT_EQ(checked->losses, whole->losses);  // computing twice changes nothing
}

// The state is saved also where a checkpoint of that iteration was there already.
TEST(Run, SuspectsAreSavedBesideIntervals) {
  testing::TempDir folder;
  auto record = std::make_shared<Record>();
  const std::string flags = fmt::format(
      "--train-iters 6 --rerun-mode validate_results --error-injection-rate 2 "
      "--error-injection-type persistent_error --save {0} --load {0} --save-interval 1",
      folder.path());
  const RunEnd end = train(flags, record);
  EXPECT_EQ(end.exit_code(), 16);
  EXPECT_EQ(train(flags, record).exit_code(), 16) << "the result waits for another machine";
  // Another layout rounds otherwise, so it cannot tell.
  EXPECT_NE(train(flags + " --tensor-model-parallel-size 1", record).state.iteration, end.state.iteration);
}

TEST(Run, RefusesPlacesThatWouldBeDestroyed) {
  testing::TempDir folder;
  auto record = std::make_shared<Record>();
  const std::string save = folder / "save";
  EXPECT_THROW(train(fmt::format("--train-iters 2 --save {0} --non-persistent-ckpt-type global "
                                 "--non-persistent-save-interval 1 --non-persistent-global-ckpt-dir {0}/",
                                 save),
                     record),
               ConfigError);
  EXPECT_THROW(train("--train-iters 2 --metrics /dev/null", record), ConfigError);
}

TEST(Run, EvaluatesInCyclicOrderWithItsOwnBatches) {
  auto record = std::make_shared<Record>();
  const RunEnd end = train(
      "--train-iters 2 --dataloader-type cyclic --eval-interval 1 --eval-iters 1 "
      "--eval-micro-batch-size 2 --eval-global-batch-size 8",
      record);
  EXPECT_EQ(end.reason, RunEnd::Reason::finished);
}

// Parameters that stay in fp32 can be sharded beside those in bf16.
TEST(Run, ShardsParametersOfTwoDTypes) {
  const std::string hybrid =
      "--train-iters 4 --ranks 4 --hybrid-layer-pattern M* --mamba-head-dim 8 "
      "--mamba-state-dim 8 --mamba-num-groups 2 --bf16 ";
  auto plain = std::make_shared<Record>();
  train(hybrid, plain);
  ASSERT_EQ(plain->losses.size(), 4u);
  for (const char* sharding : {"--use-distributed-optimizer",
                               "--use-distributed-optimizer --use-megatron-fsdp "
                               "--data-parallel-sharding-strategy optim_grads_params"}) {
    auto sharded = std::make_shared<Record>();
    train(hybrid + sharding, sharded);
    for (const auto& [iteration, loss] : plain->losses)
      EXPECT_NEAR(sharded->losses.at(iteration), loss, 2e-3) << sharding << " iteration " << iteration;
  }
}

// A replica whose weights were changed is named.
TEST(Run, ReplicasAreCompared) {
  auto record = std::make_shared<Record>();
  const std::string flags = "--train-iters 4 --ranks 4 --check-weight-hash-across-dp-replicas-interval 2";
  EXPECT_EQ(train(flags, record).state.iteration, 4);
  record->act = [](RunEvent event, RunView& view) {
    if (event != RunEvent::step_start || view.state.iteration != 1 || view.world.rank() != 3) return;
    Parameter& parameter = *view.trainer.parameters().back();
    view.ctx.kernels->fill(view.ctx.kernel_context(), {parameter.value, 7});
  };
  try {
    train(flags, record);
    FAIL() << "nothing was noticed";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("replicas have other weights"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace megatron
