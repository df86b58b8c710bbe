#include <gtest/gtest.h>

#include <filesystem>

#include "megatron/base/atomic_file.h"
#include "megatron/base/error.h"
#include "megatron/checkpoint/load.h"
#include "megatron/training/plan/flops.h"
#include "megatron/training/plan/plan.h"
#include "megatron/training/run/run.h"
#include "support/temp_dir.h"

// Runs that learn from a teacher: where it comes from, what they tell, save and go on with, and refusals.
namespace megatron {
namespace {

constexpr std::string_view kStudent =
    "--num-layers 2 --hidden-size 16 --num-attention-heads 2 --seq-length 8 --max-position-embeddings 8 "
    "--position-embedding-type rope --vocab-size 32 --make-vocab-size-divisible-by 1 --micro-batch-size 1 "
    "--global-batch-size 4 --lr 1e-2 --mock-data --device cpu --ranks 2 --tensor-model-parallel-size 2 "
    "--hidden-dropout 0 --attention-dropout 0 --eval-interval 0 --init-method-std 0.2 ";
constexpr const char* kTeacherSizes = "--num-layers 3 --hidden-size 32 --num-attention-heads 4 ";

struct Steps : Callback {
  void on(RunEvent event, RunView& view) override {
    if (event != RunEvent::step_end || !view.is_first_rank()) return;
    losses[view.report->iteration] = view.report->loss;
    norms[view.report->iteration] = view.report->grad_norm;
    terms[view.report->iteration] = view.report->terms;
  }
  std::map<int64_t, double> losses, norms;
  std::map<int64_t, std::vector<LossTerm>> terms;
};

Steps steps_of(const std::string& flags) {
  auto steps = std::make_shared<Steps>();
  RunSpec spec = run_spec(std::string(kStudent) + flags);
  spec.callbacks = {steps};
  spec.log = Log(LogLevel::error);
  spec.out = nullptr;
  run(spec);
  return *steps;
}

std::string refusal_of(const std::string& flags) {
  try {
    steps_of(flags);
    return "";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

class Distill : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new testing::TempDir;
    steps_of(std::string(kTeacherSizes) + "--train-iters 2 --save " + teacher());
  }
  static void TearDownTestSuite() { delete folder_; }
  static std::string teacher() { return folder_->path() + "/teacher"; }
  static std::string file(const std::string& name, const std::string& text) {
    write_file_atomically(folder_->path() + "/" + name, text);
    return folder_->path() + "/" + name;
  }
  static std::string taught(const std::string& flags = "--train-iters 2 ") {
    return "--export-kd-teacher-load " + teacher() + " " + flags;
  }

 private:
  inline static testing::TempDir* folder_ = nullptr;
};

TEST_F(Distill, TellsItsLosses) {
  const Steps steps = steps_of(taught()), plain = steps_of("--train-iters 2 ");
  EXPECT_NEAR(steps.losses.at(1), plain.losses.at(1), 1e-5);  // those of the labels
  EXPECT_NE(steps.losses.at(2), plain.losses.at(2));
  ASSERT_EQ(steps.terms.at(1).size(), 2u);
  EXPECT_EQ(steps.terms.at(1)[0].name, "total loss");
  EXPECT_GT(steps.terms.at(1)[0].value, 0);
}

// A run that is stopped goes on as if it had not been; a checkpoint holds the student alone.
TEST_F(Distill, GoesOnBitForBit) {
  testing::TempDir place;
  const std::string flags = taught("--train-iters 4 distill.skip_lm_loss=false ");
  const std::string both = fmt::format("{} --save {} --load {} ", flags, place.path(), place.path());
  const Steps whole = steps_of(flags), first = steps_of(both + "--exit-interval 2"), rest = steps_of(both);
  EXPECT_EQ(first.norms.size(), 2u);
  for (const int64_t iteration : {3, 4}) {
    EXPECT_EQ(rest.losses.at(iteration), whole.losses.at(iteration));
    EXPECT_EQ(rest.norms.at(iteration), whole.norms.at(iteration));
    EXPECT_EQ(rest.terms.at(iteration), whole.terms.at(iteration));
  }
  const TensorSource saved = checkpoint_source(place.path());
  for (const StoredTensor& tensor : saved.tensors)
    EXPECT_EQ(tensor.name.find("layers.2."), std::string::npos) << tensor.name;
  EXPECT_EQ(saved.find("embedding.word_embeddings.weight")->shape, (Shape{32, 16}));
}

// A rounded student, beside the teacher or not, goes on so, too.
TEST_F(Distill, RoundedRunsGoOnBitForBit) {
  testing::TempDir place;
  const std::string flags = taught("--train-iters 4 --export-quant-cfg NVFP4_DEFAULT_CFG ");
  const std::string both = fmt::format("{} --save {} --load {} ", flags, place.path(), place.path());
  const Steps whole = steps_of(flags), first = steps_of(both + "--exit-interval 2"), rest = steps_of(both);
  EXPECT_NE(whole.losses, steps_of(taught("--train-iters 4 ")).losses);
  for (const int64_t iteration : {3, 4}) {
    EXPECT_EQ(rest.losses.at(iteration), whole.losses.at(iteration));
    EXPECT_EQ(rest.norms.at(iteration), whole.norms.at(iteration));
  }
}

// Of the whole vocabulary a recording teaches as the teacher does, also a run that was stopped.
TEST_F(Distill, LearnsFromARecording) {
  testing::TempDir place;
  const std::string recording = place.path() + "/recording";
  steps_of(std::string(kTeacherSizes) +
           "--train-iters 4 --finetune --freeze-all-layers --logits-save-top-k 32 "
           "--logits-save-dtype fp32 --logits-save-dir " +
           recording + " --load " + teacher());
  const std::string flags = "--train-iters 4 --logits-load-dir " + recording + " ";
  const Steps online = steps_of(taught("--train-iters 4 ")), whole = steps_of(flags);
  for (const int64_t iteration : {1, 2, 3, 4}) {
    EXPECT_NEAR(whole.losses.at(iteration), online.losses.at(iteration), 1e-4);
    EXPECT_NEAR(whole.terms.at(iteration)[1].value, online.terms.at(iteration)[1].value, 1e-4);
  }
  const std::string both = fmt::format("{} --save {}/run --load {}/run ", flags, place.path(), place.path());
  const Steps first = steps_of(both + "--exit-interval 2"), rest = steps_of(both);
  for (const int64_t iteration : {3, 4}) EXPECT_EQ(rest.norms.at(iteration), whole.norms.at(iteration));

  EXPECT_NE(
      refusal_of("--train-iters 5 --logits-load-dir " + recording).find("it has nothing of iteration 5"),
      std::string::npos);
  EXPECT_NE(refusal_of(flags + "--seed 9").find("has other tokens than were recorded"), std::string::npos);
  const Steps labels = steps_of(flags + "--seed 9 --logits-load-ignore-errors ");
  EXPECT_EQ(labels.norms, steps_of("--train-iters 4 --seed 9 ").norms);
}

TEST_F(Distill, TakesTheFileOfMegatronLm) {
  const std::string losses = file("losses.yaml",
                                  "logit_layers: [output_layer, output_layer]\n"
                                  "intermediate_layer_pairs: []\n"
                                  "skip_lm_loss: false\nkd_loss_scale: 0.5\nlogit_kl_temperature: 2.0\n");
  const Steps named = steps_of(taught() + "--export-kd-cfg " + losses);
  const Steps given = steps_of(taught() +
                               "distill.skip_lm_loss=false distill.kd_loss_scale=0.5 "
                               "distill.logit_kl_temperature=2 ");
  EXPECT_EQ(named.terms, given.terms);
  // What is given beside the file counts.
  EXPECT_EQ(steps_of(taught() + "--export-kd-cfg " + losses + " distill.kd_loss_scale=0.25").terms,
            steps_of(taught() +
                     "distill.skip_lm_loss=false distill.kd_loss_scale=0.25 distill.logit_kl_temperature=2 ")
                .terms);
}

// The teacher is the student but for what the file says.
TEST_F(Distill, TakesTheTeachersModelFromAFile) {
  const std::string model =
      file("model.yaml", "num_layers: 3\nhidden_size: 32\nffn_hidden_size: 128\nnum_attention_heads: 4\n");
  EXPECT_EQ(steps_of(taught() + "--export-kd-teacher-model-config " + model).terms, steps_of(taught()).terms);
  const std::string other = file("other.yaml", "hidden_size: 64\n");
  EXPECT_NE(refusal_of(taught() + "--export-kd-teacher-model-config " + other).find("does not fit the model"),
            std::string::npos);
  // One that lies beside the weights counts where none is given.
  const std::string beside = file("teacher/model_config.yaml", "hidden_size: 64\n");
  EXPECT_NE(refusal_of(taught()).find("does not fit the model"), std::string::npos);
  EXPECT_EQ(refusal_of(taught() + "--export-kd-teacher-model-config " + model), "");
  std::filesystem::remove(beside);
}

TEST_F(Distill, RefusesWithAdvice) {
  const auto expect = [](const std::string& flags, const std::string& part) {
    const std::string refusal = refusal_of(flags);
    EXPECT_NE(refusal.find(part), std::string::npos) << refusal;
  };
  expect("--train-iters 1 --export-kd-teacher-load nowhere",
         "--export-kd-teacher-load nowhere: there is no checkpoint");
  expect(taught() + "--vocab-size 48", "it predicts 32 tokens, the student 48");
  expect(taught() + "--num-attention-heads 8 --ranks 8 --tensor-model-parallel-size 8",
         "the teacher cannot be laid out as the student is:\n  model.tensor_model_parallel_size = 8");
  expect(taught() + "--export-kd-cfg nowhere.yaml", "name a YAML file, or leave it out");
  expect(taught() + "--export-kd-cfg " + file("pairs.yaml", "intermediate_layer_pairs: [[a, b]]\n"),
         "leave intermediate_layer_pairs out of it");
  expect(taught() + "--export-kd-cfg " + file("layers.yaml", "logit_layers: [a, b]\n"),
         "use [output_layer, output_layer], or leave logit_layers out");
  expect(taught() + "--export-kd-cfg " + file("unknown.yaml", "temperature: 2\n"),
         "use skip_lm_loss, kd_loss_scale, logit_kl_temperature");
  expect(taught() + "--export-kd-cfg " + file("cold.yaml", "logit_kl_temperature: -1\n"),
         "distill.logit_kl_temperature = -1");
  expect(taught() + "--export-kd-teacher-model-config " + file("lr.yaml", "lr: 1\n"),
         "lr is not a setting of a model");
  expect(taught() + "--export-kd-teacher-model-config " + file("typo.yaml", "num_layer: 1\n"),
         "there is no setting num_layer of a model");
}

// Memory and throughput count the teacher.
TEST_F(Distill, PlansTheTeacher) {
  const auto plan_of = [](const std::string& flags) {
    return plan_run(resolve_run(run_spec(std::string(kStudent) + flags), {}));
  };
  const RunPlan plain = plan_of("--train-iters 1 "), beside = plan_of(taught("--train-iters 1 "));
  const auto parameters = [](const RunPlan& plan) {
    return plan.ranks[0].memory.by_tag[static_cast<size_t>(MemoryTag::Parameter)].peak;
  };
  EXPECT_GT(parameters(beside), 3 * parameters(plain));
  EXPECT_GT(beside.flops_per_step, 1.5 * plain.flops_per_step);
  EXPECT_EQ(beside.ranks[0].parameters, plain.ranks[0].parameters);
}

}  // namespace
}  // namespace megatron
