#include "megatron/training/run/recorded_predictions.h"

#include "megatron/comm/run_ranks.h"
#include "megatron/models/parallel_setup.h"
#include "parity/cases.h"
#include "parity/settings.h"
#include "support/temp_dir.h"

// Learning from recorded predictions: against a teacher that is there, and every layout against one rank.
namespace megatron::testing {
namespace {

constexpr int kSeed = 4321;  // of the weights that train_layout() gives a teacher

Config teaching(const Config& student) {
  Config config = student;
  config.model =
      llama_style({.layers = 2, .hidden = 48, .heads = 6, .groups = 6, .ffn = 64, .vocab = 50, .length = 8});
  config.model.make_vocab_size_divisible_by = 16;
  config.model.share_embeddings_and_output_weights = false;
  config.model.init_method_std = 0.3;
  config.rng.seed = kSeed;
  return config;
}

std::vector<Batch> batches_of(const std::vector<int64_t>& tokens, int64_t length,
                              std::span<const Share> shares) {
  std::vector<Batch> result;
  for (const Share& share : shares) {
    const auto row = length + 1;
    const std::span<const int64_t> own = std::span(tokens).subspan(static_cast<size_t>(share.first * row),
                                                                   static_cast<size_t>(share.count * row));
    for (Batch& batch : batches_of_tokens(own, share.count, length, {}, {}, share.first))
      result.push_back(std::move(batch));
  }
  return result;
}

void record(const Config& config, const Layout& layout, const std::vector<std::vector<int64_t>>& batches) {
  const Config own = apply(config, layout);
  const ParallelSizes sizes = sizes_of(layout);
  run_ranks(sizes.world, [&](int, const ProcessGroup& world) {
    RankContext ctx(kCpu, 1, world.rank());
    world.attach(ctx);
    const ParallelContext parallel = ParallelContext::from_sizes(world, sizes);
    RankTrainer trainer(ctx, own, parallel, DType::F64);
    PredictionRecorder recorder(ctx, world, parallel, own);
    const Shares shares = batch_shares(own, parallel, own.train.global_batch_size);
    const auto& share = shares.of_replica[static_cast<size_t>(parallel.replica())];
    for (size_t i = 0; i < batches.size(); ++i)
      recorder.evaluate(trainer, batches_of(batches[i], own.model.seq_length, share), static_cast<int64_t>(i),
                        shares.batches());
  });
}

class RecordedSource final : public BatchSource {
 public:
  RecordedSource(const Config& config, std::vector<std::vector<int64_t>> batches)
      : recording_(config, DType::F64), batches_(std::move(batches)), length_(config.model.seq_length) {}
  std::vector<Batch> step(const StepRequest& request) const override {
    return recording_.added_to(
        batches_of(batches_[static_cast<size_t>(request.iteration)], length_, request.shares),
        request.iteration);
  }
  int64_t length() const override { return length_; }

 private:
  RecordedPredictions recording_;
  std::vector<std::vector<int64_t>> batches_;
  int64_t length_;
};

Config recorded(Config config, const std::string& folder, int64_t k) {
  config.distill.logits_save_dir = folder;
  config.distill.logits_save_top_k = k;
  config.distill.logits_save_dtype = "fp64";
  return config;
}

Config learning(Config config, const std::string& folder, double share = 1) {
  config.distill.logits_load_dir = folder;
  config.distill.logits_load_kd_loss_alpha = share;
  return config;
}

Trained learn(const Config& config, const Layout& layout, const std::vector<std::vector<int64_t>>& batches) {
  const Config own = apply(config, layout);
  return train_layout(
      own, {.sizes = sizes_of(layout), .source = std::make_shared<RecordedSource>(own, batches)}, batches);
}

void expect_same_terms(const Trained& one, const Trained& many) {
  for (size_t step = 0; step < one.reports.size(); ++step)
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(many.reports[step].terms[i].name, one.reports[step].terms[i].name);
      EXPECT_NEAR(many.reports[step].terms[i].value, one.reports[step].terms[i].value, kTolerance);
    }
}

const std::vector<Layout> kLayouts = {{.name = "one rank"},
                                      {.name = "tp2 sp", .tp = 2, .sp = true},
                                      {.name = "pp2 cp2", .pp = 2, .cp = 2},
                                      {.name = "tp2 dp2", .tp = 2, .dp = 2}};

// Of the whole vocabulary a recording is the teacher itself, whichever layouts record and learn.
TEST(RecordedParity, TheWholeVocabularyIsTheTeacher) {
  const Config student = small_gpt();
  const auto batches = batches_for(student, kSteps);
  const auto teacher = std::make_shared<const ModelConfig>(teaching(student).model);
  const Trained online = train_layout(student, {.teacher = teacher}, batches);
  for (const Layout& layout : kLayouts) {
    SCOPED_TRACE(layout.name);
    const TempDir folder;
    record(recorded(teaching(student), folder.path(), 1000), layout, batches);
    const Trained offline = learn(learning(student, folder.path()), {.name = "one rank"}, batches);
    expect_equal(online, offline, kTolerance);
    expect_same_terms(online, offline);
  }
}

// The likeliest tokens alone, beside the labels.
TEST(RecordedParity, EveryLayoutLearnsAlike) {
  const Config student = small_gpt();
  const auto batches = batches_for(student, kSteps);
  const TempDir folder;
  Config recording = recorded(teaching(student), folder.path(), 6);
  recording.distill.logits_save_top_p = 0.9;
  record(recording, {.name = "one rank"}, batches);
  const Config config = learning(student, folder.path(), 0.3);
  const Trained one = learn(config, {.name = "one rank"}, batches);
  for (const StepReport& report : one.reports)
    EXPECT_NEAR(report.terms[0].value, 0.7 * report.loss + 0.3 * report.terms[1].value, 1e-12);
  for (const Layout& layout : std::span(kLayouts).subspan(1)) {
    SCOPED_TRACE(layout.name);
    const Trained many = learn(config, layout, batches);
    expect_equal(one, many, kTolerance);
    expect_same_terms(one, many);
  }
}

TEST(Recorded, OtherTokensAreRefused) {
  const Config student = small_gpt();
  auto batches = batches_for(student, 1);
  const TempDir folder;
  record(recorded(teaching(student), folder.path(), 3), {.name = "one rank"}, batches);
  const RecordedPredictions recording(learning(student, folder.path()), DType::F64);
  const Share all{0, student.train.global_batch_size};
  EXPECT_NO_THROW(recording.added_to(batches_of(batches[0], 8, {&all, 1}), 0));
  EXPECT_THROW(recording.added_to(batches_of(batches[0], 8, {&all, 1}), 1), ConfigError);
  batches[0][10] = (batches[0][10] + 1) % 50;
  EXPECT_THROW(recording.added_to(batches_of(batches[0], 8, {&all, 1}), 0), ConfigError);
}

}  // namespace
}  // namespace megatron::testing
