#include "megatron/models/objectives/grpo_objective.h"
#include "parity/cases.h"
#include "parity/settings.h"

// Learning from advantages: every layout against one rank, with ratios to the old policy on both sides of the
// clamp.
namespace megatron::testing {
namespace {

double drawn(uint64_t stream, int64_t at) {
  return Philox::at({99, stream}, static_cast<uint64_t>(at)).word[0] * 0x1p-31 - 1;
}

// Answers that begin after a third of a row, with values for each of their tokens.
class Answers final : public BatchSource {
 public:
  explicit Answers(const Config& config) : config_(config) {}
  std::vector<Batch> step(const StepRequest& request) const override {
    const int64_t length = config_.model.seq_length, row = length + 1;
    const std::vector<int64_t> tokens =
        random_batches(config_, static_cast<int>(request.iteration) + 1).back();
    std::vector<Batch> batches;
    for (const Share& share : request.shares) {
      Batch& batch = batches.emplace_back();
      batch.rows = share.count;
      batch.first = share.first;
      batch.values.resize(GrpoValues::count);
      for (int64_t sample = share.first; sample < share.first + share.count; ++sample)
        for (int64_t i = 0; i < length; ++i) {
          const bool answer = i >= length / 3 && i < length - sample % 3;
          const auto at = static_cast<size_t>(sample * row + i);
          batch.ids.push_back(tokens[at]);
          batch.labels.push_back(answer ? tokens[at + 1] : kIgnoredLabel);
          const auto value = [&](uint64_t stream) {
            return drawn(stream + 10 * static_cast<uint64_t>(request.iteration), sample * length + i);
          };
          batch.values[GrpoValues::advantage].push_back(answer ? drawn(1, sample) : 0);
          batch.values[GrpoValues::old_log_prob].push_back(answer ? value(2) - 4 : 0);
          batch.values[GrpoValues::reference_log_prob].push_back(answer ? value(3) - 4 : 0);
          batch.values[GrpoValues::sampling_weight].push_back(answer ? 1 + value(4) / 2 : 0);
        }
    }
    return batches;
  }
  int64_t length() const override { return config_.model.seq_length; }

 private:
  Config config_;
};

Config rewarded(Config config) {
  config.rl.perform_rl_step = true;
  config.rl.grpo_clamp_eps_lower = 0.2;
  config.rl.grpo_clamp_eps_upper = 0.3;
  config.rl.grpo_kl_beta = 0.1;
  config.rl.grpo_entropy_term_weight = 0.05;
  return config;
}

Trained answered(const Config& config, const ParallelSizes& sizes = {}) {
  return train_layout(config, {.sizes = sizes, .source = std::make_shared<const Answers>(config)},
                      batches_for(config, kSteps));
}

void check_rewarded(const Config& config, std::span<const Layout> layouts) {
  const Trained one = answered(config);
  ASSERT_EQ(one.reports[0].terms.size(), 5u);
  for (const size_t clamped : {3, 4}) {
    EXPECT_GT(one.reports[0].terms[clamped].value, 0.05) << one.reports[0].terms[clamped].name;
    EXPECT_LT(one.reports[0].terms[clamped].value, 0.95) << one.reports[0].terms[clamped].name;
  }
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(layout.name);
    const Trained many = answered(apply(config, layout), sizes_of(layout));
    expect_equal(one, many, kTolerance);
    for (size_t step = 0; step < one.reports.size(); ++step) {
      const auto &expected = one.reports[step].terms, &terms = many.reports[step].terms;
      ASSERT_EQ(terms.size(), expected.size());
      for (size_t i = 0; i < terms.size(); ++i)
        EXPECT_NEAR(terms[i].value, expected[i].value, kTolerance) << terms[i].name;
    }
  }
}

void zero1(Config& config) { shard<1>(config, 0); }

const std::vector<Layout> kLayouts = {
    {.name = "tp2", .tp = 2},
    {.name = "tp2 sp", .tp = 2, .sp = true},
    {.name = "pp2", .pp = 2},
    {.name = "pp2 vpp2", .pp = 2, .vpp = 2},
    {.name = "cp2", .cp = 2},
    {.name = "dp2 zero1", .dp = 2, .change = zero1},
    {.name = "zb-h1 tp2", .tp = 2, .pp = 2, .change = use<PipelineSchedule::zb_h1>},
    {.name = "tp2 sp pp2 cp2 dp2", .tp = 2, .pp = 2, .dp = 2, .cp = 2, .sp = true, .change = zero1}};

TEST(GrpoParity, MeanOfMicroBatches) { check_rewarded(rewarded(small_gpt()), kLayouts); }

TEST(GrpoParity, LossPerToken) {
  Config config = rewarded(with_biases_and_layernorm());
  config.model.calculate_per_token_loss = true;
  check_rewarded(config, std::span(kLayouts).last(3));
}

TEST(GrpoParity, Experts) {
  const std::vector<Layout> layouts = {{.name = "dp2 ep2", .dp = 2, .ep = 2}};
  check_rewarded(rewarded(mixture_of_experts()), layouts);
}

}  // namespace
}  // namespace megatron::testing
