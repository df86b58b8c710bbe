#include <gtest/gtest.h>

#include "parity/cases.h"
#include "parity/pass_through.h"
#include "parity/settings.h"

// Every pipeline schedule, executed, trains like one rank.
namespace megatron::testing {
namespace {

constexpr auto gpipe = use<PipelineSchedule::gpipe>;
constexpr auto zb_h1 = use<PipelineSchedule::zb_h1>;
constexpr auto zb_v = use<PipelineSchedule::zb_v>;

template <int size>
void group(Config& config) {
  config.parallel.microbatch_group_size_per_vp_stage = size;
}

template <PipelineSchedule kind>
void without_overlap(Config& config) {
  config.parallel.pipeline_schedule = kind;
  config.parallel.overlap_p2p_comm = false;
}

const Layout kSchedules[] = {
    {.name = "gpipe_pp2", .pp = 2, .change = gpipe},
    {.name = "zb_h1_pp2", .pp = 2, .change = zb_h1},
    {.name = "zb_h1_pp4", .pp = 4, .change = zb_h1},
    {.name = "zb_v_pp2", .pp = 2, .vpp = 2, .change = zb_v},
    {.name = "zb_v_pp4_empty_stages", .pp = 4, .vpp = 2, .stages = "E|t||t|t||t|L", .change = zb_v},
    {.name = "tp2_sp_zb_h1_pp2", .tp = 2, .pp = 2, .sp = true, .change = zb_h1},
    {.name = "tp2_zb_v_pp2", .tp = 2, .pp = 2, .vpp = 2, .change = zb_v},
    {.name = "tp2_sp_zb_v_pp2", .tp = 2, .pp = 2, .vpp = 2, .sp = true, .change = zb_v},
    {.name = "dp2_zb_h1_pp2", .pp = 2, .dp = 2, .change = zb_h1},
    {.name = "dp2_zb_v_pp2", .pp = 2, .dp = 2, .vpp = 2, .change = zb_v},
};

TEST(PipelineParity, SchedulesTied) { check_layouts(small_gpt(), kSchedules); }
TEST(PipelineParity, SchedulesUntied) { check_layouts(with_biases_and_layernorm(), kSchedules); }
TEST(PipelineParity, SchedulesWithDropout) { check_layouts(with_dropout(), std::span(kSchedules).last(5)); }

TEST(PipelineParity, GroupsStagesAndMessages) {
  const Layout layouts[] = {
      {.name = "group3", .pp = 2, .vpp = 2, .change = group<3>},
      {.name = "group4", .pp = 2, .vpp = 2, .change = group<4>},
      {.name = "group8", .pp = 2, .vpp = 2, .change = group<8>},
      {.name = "layout_pp2_vpp2", .pp = 2, .vpp = 2, .stages = "Et|tt|t|L"},
      {.name = "layout_pp4", .pp = 4, .stages = "E|tt|t|tL"},
      {.name = "uneven",
       .pp = 3,
       .change = [](Config& c) { c.parallel.num_layers_in_first_pipeline_stage = 2; }},
      {.name = "embedding_and_loss_count",
       .pp = 3,
       .change =
           [](Config& c) {
             c.parallel.account_for_embedding_in_pipeline_split = true;
             c.parallel.account_for_loss_in_pipeline_split = true;
           }},
      {.name = "batched_1f1b", .pp = 4, .change = without_overlap<PipelineSchedule::one_f_one_b>},
      {.name = "batched_interleaved",
       .pp = 2,
       .vpp = 2,
       .change = without_overlap<PipelineSchedule::interleaved>},
      {.name = "batched_zb_h1", .pp = 2, .change = without_overlap<PipelineSchedule::zb_h1>},
      {.name = "batched_zb_v", .pp = 2, .vpp = 2, .change = without_overlap<PipelineSchedule::zb_v>},
  };
  check_layouts(small_gpt(), layouts);
}

TEST(PipelineParity, OneToEightMicrobatches) {
  for (int count = 1; count <= 8; ++count) {
    SCOPED_TRACE(count);
    Config config = small_gpt();
    config.train.global_batch_size = count;
    std::vector<Layout> layouts = {
        {.name = "1f1b", .pp = 4, .micro_batch = 1},
        {.name = "gpipe", .pp = 4, .micro_batch = 1, .change = gpipe},
        {.name = "zb_h1", .pp = 4, .micro_batch = 1, .change = zb_h1},
        {.name = "zb_v", .pp = 2, .vpp = 2, .micro_batch = 1, .change = zb_v},
    };
    if (count > 1 && count % 2 == 0)
      layouts.push_back({.name = "interleaved", .pp = 2, .vpp = 2, .micro_batch = 1});
    config.train.micro_batch_size = 1;
    auto batches = batches_for(config, 2);
    Trained one = train(config, {}, batches);
    for (const Layout& layout : layouts) {
      SCOPED_TRACE(layout.name);
      expect_equal(one, train(apply(config, layout), sizes_of(layout), batches), kTolerance);
    }
  }
}

// Micro-batches of several lengths: each stage learns the shape from the one before it.
TEST(PipelineParity, VariableLengths) {
  Config config = with_dropout();
  config.parallel.variable_seq_lengths = true;
  const std::vector<int64_t> lengths = {8, 4, 6, 8, 2, 4};
  auto batches = random_batches(config, 3, lengths);
  const Layout layouts[] = {
      {.name = "pp2", .pp = 2},
      {.name = "pp2_batched", .pp = 2, .change = without_overlap<PipelineSchedule::one_f_one_b>},
      {.name = "pp2_vpp2", .pp = 2, .vpp = 2},
      {.name = "tp2_sp_zb_h1_pp2", .tp = 2, .pp = 2, .sp = true, .change = zb_h1},
      {.name = "zb_v_pp2", .pp = 2, .vpp = 2, .change = zb_v},
  };
  ParityRun run{.lengths = lengths};
  Trained one = train_layout(config, run, batches);
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(layout.name);
    run.sizes = sizes_of(layout);
    expect_equal(one, train_layout(apply(config, layout), run, batches), kTolerance);
  }
}

// A group whose first two messages of activations change places.
class SwapsTwoMessages final : public PassThrough {
 public:
  SwapsTwoMessages(ProcessGroup inner, std::shared_ptr<std::vector<Tensor>> held)
      : PassThrough(std::move(inner)), held_(std::move(held)) {}

 private:
  std::vector<Tensor> sent(const Tensor& tensor) override {
    if (rank() != 0 || held_->size() == 2) return {tensor};
    held_->push_back(tensor);
    if (held_->size() == 1) return {};
    return {tensor, held_->front()};
  }
  std::shared_ptr<GroupBackend> part(ProcessGroup group) override {
    return std::make_shared<SwapsTwoMessages>(std::move(group), held_);
  }

  std::shared_ptr<std::vector<Tensor>> held_;
};

TEST(PlantedFault, SwappedMicrobatchesTurnParityRed) {
  Config config = small_gpt();
  auto batches = batches_for(config, 1);
  Trained one = train(config, {}, batches);
  for (const Layout& layout : {Layout{.name = "1f1b", .pp = 2}, kSchedules[1]}) {
    Trained faulty =
        train(apply(config, layout), sizes_of(layout), batches, DType::F64, [](const ProcessGroup& world) {
          return ProcessGroup(
              std::make_shared<SwapsTwoMessages>(world, std::make_shared<std::vector<Tensor>>()));
        });
    std::string where;
    EXPECT_GT(difference(one.gradients, faulty.gradients, &where), 1e-6) << layout.name;
    EXPECT_GT(std::abs(one.losses[0] - faulty.losses[0]), 1e-6) << layout.name;
  }
}

}  // namespace
}  // namespace megatron::testing
