#include <gtest/gtest.h>

#include "parity/cases.h"
#include "parity/pass_through.h"

// Every way of sharing out states, gradients and parameters among data-parallel ranks trains like one rank.
namespace megatron::testing {
namespace {

struct DataCase {
  int zero = 0;
  bool overlap = false;
  int64_t bucket_size = 3000;  // so small that a chunk has several buckets
};

Config with(Config config, const DataCase& data) {
  DdpConfig& ddp = config.ddp;
  ddp.use_distributed_optimizer = data.zero > 0;
  ddp.use_megatron_fsdp = data.zero > 1;
  ddp.data_parallel_sharding_strategy = static_cast<ShardingStrategy>(data.zero);
  ddp.overlap_grad_reduce = data.overlap;
  ddp.overlap_param_gather = data.overlap && data.zero > 0;
  ddp.bucket_size = data.bucket_size;
  return config;
}

Trained run(const Config& config, const Layout& layout, const DataCase& data,
            const std::vector<std::vector<int64_t>>& batches, DType dtype = DType::F64,
            const Interpose& interpose = {}) {
  return train(with(apply(config, layout), data), sizes_of(layout), batches, dtype, interpose);
}

std::string name_of(const Layout& layout, const DataCase& data) {
  return fmt::format("{} zero {}{}, buckets of {}", layout.name, data.zero, data.overlap ? " overlapped" : "",
                     data.bucket_size);
}

const Layout kLayouts[] = {
    {.name = "dp2", .dp = 2},
    {.name = "dp4", .dp = 4},
    {.name = "tp2_sp_dp2", .tp = 2, .dp = 2, .sp = true},
    {.name = "pp2_dp2", .pp = 2, .dp = 2},
    {.name = "pp2_vpp2_dp2", .pp = 2, .dp = 2, .vpp = 2},
    {.name = "tp2_pp2_dp2", .tp = 2, .pp = 2, .dp = 2},
    {.name = "dp4 as 2 x 2", .dp = 4, .instances = 2},
};

void check_data(const Config& config, std::span<const Layout> layouts, std::span<const DataCase> cases,
                int steps = kSteps) {
  auto batches = batches_for(config, steps);
  Trained one = train(config, {}, batches);
  for (const Layout& layout : layouts)
    for (const DataCase& data : cases) {
      if (layout.instances > 1 && data.zero == 0) continue;
      SCOPED_TRACE(name_of(layout, data));
      expect_equal(one, run(config, layout, data, batches), kTolerance);
    }
}

class Zero : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Data, Zero, ::testing::Values(0, 1, 2, 3));

TEST_P(Zero, TiedRope) {
  const DataCase cases[] = {{GetParam(), false}, {GetParam(), true}};
  check_data(small_gpt(), kLayouts, cases);
}

TEST_P(Zero, UntiedWithBiases) {
  const DataCase cases[] = {{GetParam(), true}};
  check_data(with_biases_and_layernorm(), kLayouts, cases);
}

// One bucket for all, and one for nearly every parameter.
TEST_P(Zero, BucketSizes) {
  const Layout layouts[] = {{.name = "dp2", .dp = 2}, {.name = "pp2_dp2", .pp = 2, .dp = 2}};
  const DataCase cases[] = {{GetParam(), true, 0}, {GetParam(), true, 1}};
  check_data(small_gpt(), layouts, cases);
}

TEST_P(Zero, Accumulation) {
  Config config = small_gpt();
  config.train.global_batch_size = 24;
  const Layout layouts[] = {{.name = "dp2, 1 micro-batch", .dp = 2, .micro_batch = 12},
                            {.name = "dp2, 2 micro-batches", .dp = 2, .micro_batch = 6},
                            {.name = "dp2, 3 micro-batches", .dp = 2, .micro_batch = 4},
                            {.name = "pp2_dp2, 4 micro-batches", .pp = 2, .dp = 2, .micro_batch = 3}};
  const DataCase cases[] = {{GetParam(), true}};
  check_data(config, layouts, cases);
}

// Weight gradients that come later than those of norms, and a tied weight that two chunks of a rank use.
TEST_P(Zero, DeferredWeightGradients) {
  const Layout layouts[] = {
      {.name = "zb_h1",
       .pp = 2,
       .dp = 2,
       .change = [](Config& c) { c.parallel.pipeline_schedule = PipelineSchedule::zb_h1; }},
      {.name = "zb_v",
       .pp = 2,
       .dp = 2,
       .vpp = 2,
       .change = [](Config& c) { c.parallel.pipeline_schedule = PipelineSchedule::zb_v; }},
      {.name = "gpipe",
       .pp = 2,
       .dp = 2,
       .change = [](Config& c) { c.parallel.pipeline_schedule = PipelineSchedule::gpipe; }},
  };
  const DataCase cases[] = {{GetParam(), false}, {GetParam(), true}};
  check_data(small_gpt(), layouts, cases);
}

// Expert parameters have a data-parallel group of their own; with ep4 it is one rank, and nothing of them is
// sharded.
TEST_P(Zero, Experts) {
  Config config = small_gpt();
  config.model.num_moe_experts = 4;
  config.model.moe_ffn_hidden_size = 24;
  config.model.moe_token_dispatcher_type = TokenDispatcher::alltoall;
  config.model.moe_layer_freq = Json(Json::Array{Json(1), Json(0), Json(1), Json(1)});
  const Layout layouts[] = {
      {.name = "ep2 of dp4", .dp = 4, .ep = 2},
      {.name = "ep4 of dp4", .dp = 4, .ep = 4},
      {.name = "tp2 sp dp2 ep2 etp1", .tp = 2, .dp = 2, .ep = 2, .etp = 1, .sp = true},
      {.name = "pp2 dp2 ep2", .pp = 2, .dp = 2, .ep = 2},
      {.name = "averaged, ep2 of dp4",
       .dp = 4,
       .ep = 2,
       .change = [](Config& c) { c.ddp.average_in_collective = true; }},
  };
  const DataCase cases[] = {{GetParam(), true}};
  check_data(config, layouts, cases);
}

// Layers that run a second time, and sequences cut over ranks that share gradients too.
TEST_P(Zero, RecomputeAndContext) {
  const Layout layouts[] = {
      {.name = "dp2, two layers at a time",
       .dp = 2,
       .change =
           [](Config& c) {
             c.execution.recompute_granularity = RecomputeGranularity::full;
             c.execution.recompute_method = RecomputeMethod::uniform;
             c.execution.recompute_num_layers = 2;
           }},
      {.name = "pp2_dp2, some modules",
       .pp = 2,
       .dp = 2,
       .change =
           [](Config& c) {
             c.execution.recompute_granularity = RecomputeGranularity::selective;
             c.execution.recompute_modules = {"core_attn", "layernorm", "mlp"};
           }},
      {.name = "cp2_dp2", .dp = 2, .cp = 2},
  };
  const DataCase cases[] = {{GetParam(), false}, {GetParam(), true}};
  check_data(small_gpt(), layouts, cases);
}

TEST_P(Zero, AveragesInCollectives) {
  Config config = small_gpt();
  const Layout layouts[] = {
      {.name = "tp2_sp_dp2", .tp = 2, .dp = 2, .sp = true},
      {.name = "dp4 as 2 x 2", .dp = 4, .instances = 2},
      {.name = "pp2_dp2", .pp = 2, .dp = 2},
  };
  auto batches = batches_for(config, kSteps);
  Trained one = train(config, {}, batches);
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(layout.name);
    if (layout.instances > 1 && GetParam() == 0) continue;
    Config averaged = apply(config, layout);
    averaged.ddp.average_in_collective = true;
    expect_equal(one, train(with(averaged, {GetParam(), true}), sizes_of(layout), batches), kTolerance);
  }
}

// Ranks send each other their parts and add them themselves.
TEST_P(Zero, AddsPartsOfGradients) {
  const Config config = small_gpt();
  const Layout layouts[] = {{.name = "dp4", .dp = 4},
                            {.name = "dp4 as 2 x 2", .dp = 4, .instances = 2},
                            {.name = "averaged tp2_dp2", .tp = 2, .dp = 2, .change = [](Config& c) {
                               c.ddp.average_in_collective = true;
                             }}};
  const auto batches = batches_for(config, kSteps);
  const Trained one = train(config, {}, batches);
  for (const Layout& layout : layouts) {
    if (layout.instances > 1 && GetParam() == 0) continue;
    SCOPED_TRACE(layout.name);
    Config parts = apply(config, layout);
    parts.ddp.reduce_scatter_with_fp32_accumulation = true;
    expect_equal(one, train(with(parts, {GetParam(), true}), sizes_of(layout), batches), kTolerance);
  }
}

// Gradients travel in another format than they are kept in. Behind the first step, whose update is but signs,
// rounding is seen.
TEST_P(Zero, SendsGradientsInFewerBits) {
  Config config = small_gpt();
  const auto batches = batches_for(config, 3);
  const Layout layout{.name = "dp4", .dp = 4};
  auto sent = [&](const char* dtype) {
    Config fsdp = with(apply(config, layout), {GetParam(), true});
    fsdp.ddp.use_megatron_fsdp = true;
    fsdp.ddp.megatron_fsdp_grad_comm_dtype = dtype;
    return train(fsdp, sizes_of(layout), batches, DType::F32);
  };
  const Trained kept = sent("auto"), same = sent("fp32"), bf16 = sent("bf16"), fp16 = sent("fp16");
  std::string where;
  EXPECT_EQ(difference(kept.parameters, same.parameters, &where), 0) << where;
  for (const Trained* narrow : {&bf16, &fp16}) {
    EXPECT_EQ(narrow->ranks_apart, 0);
    EXPECT_GT(difference(kept.parameters, narrow->parameters, &where), 0);
    for (size_t i = 0; i < batches.size(); ++i) EXPECT_NEAR(kept.losses[i], narrow->losses[i], 2e-2);
  }
}

// Labels that do not count are spread unevenly over ranks and micro-batches: the loss is the mean over tokens
// all the same.
TEST_P(Zero, LossPerToken) {
  Config config = small_gpt();
  config.model.calculate_per_token_loss = true;
  auto batches = batches_for(config, kSteps);
  leave_out_labels(batches);
  Trained one = train(config, {}, batches);
  const Layout layouts[] = {{.name = "dp2", .dp = 2},
                            {.name = "dp4_micro4", .dp = 4, .micro_batch = 4},
                            {.name = "tp2_pp2_dp2_micro1", .tp = 2, .pp = 2, .dp = 2, .micro_batch = 1}};
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(layout.name);
    expect_equal(one, run(config, layout, {GetParam(), true}, batches), kTolerance);
  }
}

TEST_P(Zero, SinglePrecisionUnderSgd) {
  Config config = small_gpt();
  config.optimizer.optimizer = OptimizerKind::sgd;
  auto batches = batches_for(config, kSteps);
  Trained one = train(config, {}, batches, DType::F32);
  for (const Layout& layout : kLayouts) {
    if (layout.instances > 1 && GetParam() == 0) continue;
    SCOPED_TRACE(layout.name);
    Trained many = run(config, layout, {GetParam(), true}, batches, DType::F32);
    for (size_t i = 0; i < batches.size(); ++i)
      EXPECT_NEAR(one.losses[i], many.losses[i], 1e-5 * one.losses[i]) << "step " << i;
    std::string where;
    EXPECT_LE(difference(one.gradients, many.gradients, &where), 1e-4) << where;
    EXPECT_LE(difference(one.parameters, many.parameters, &where), 1e-4) << where;
  }
}

TEST_P(Zero, HalfPrecision) {
  Config config = small_gpt();
  auto batches = batches_for(config, kSteps);
  Trained one = train(config, {}, batches, DType::F64);
  for (const Layout& layout : kLayouts) {
    if (layout.instances > 1 && GetParam() == 0) continue;
    SCOPED_TRACE(layout.name);
    Trained many = run(config, layout, {GetParam(), true}, batches, DType::BF16);
    for (size_t i = 0; i < batches.size(); ++i)
      EXPECT_NEAR(one.losses[i], many.losses[i], 2e-2 * one.losses[i]) << "step " << i;
  }
}

// Gradients in bf16: those of fp32 but for rounding, which each sum over micro-batches and ranks adds.
TEST_P(Zero, NarrowGradients) {
  Config config = small_gpt();
  auto batches = batches_for(config, 1);
  Trained wide = train(config, {}, batches, DType::BF16);
  config.ddp.grad_reduce_in_fp32 = false;
  for (const Layout& layout : kLayouts) {
    if (layout.instances > 1 && GetParam() == 0) continue;
    SCOPED_TRACE(layout.name);
    Trained narrow = run(config, layout, {GetParam(), true}, batches, DType::BF16);
    EXPECT_NEAR(wide.losses[0], narrow.losses[0], 5e-3 * wide.losses[0]);
    std::string where;
    const double apart = difference(wide.gradients, narrow.gradients, &where);
    EXPECT_LE(apart, 2e-2) << where;
    EXPECT_GT(apart, 1e-4) << "nothing was rounded";
  }
}

// A group whose requests a test changes: what a fault in the collectives' use looks like.
class Changed final : public PassThrough {
 public:
  using Change = std::function<void(CommRequest&)>;
  Changed(ProcessGroup inner, Change change) : PassThrough(std::move(inner)), change_(std::move(change)) {}

 private:
  void change(CommRequest& request) override { change_(request); }
  std::shared_ptr<GroupBackend> part(ProcessGroup group) override {
    return std::make_shared<Changed>(std::move(group), change_);
  }

  Change change_;
};

void expect_red(const DataCase& data, const Changed::Change& change) {
  Config config = small_gpt();
  auto batches = batches_for(config, 2);
  Trained one = train(config, {}, batches);
  Layout layout{.name = "dp2", .dp = 2};
  Trained faulty = run(config, layout, data, batches, DType::F64, [&](const ProcessGroup& world) {
    return ProcessGroup(std::make_shared<Changed>(world, change));
  });
  std::string where;
  EXPECT_GT(difference(one.parameters, faulty.parameters, &where), 1e-6) << "zero " << data.zero;
}

TEST(PlantedDataFault, AWrongDivisorTurnsParityRed) {
  for (int zero : {0, 1, 2, 3})
    expect_red({zero, true}, [](CommRequest& r) {
      if (r.input.numel() > 1) r.op = ReduceOp::Avg;
    });
}

TEST(PlantedDataFault, ASwappedShardTurnsParityRed) {
  for (int zero : {1, 2, 3})
    expect_red({zero, false}, [](CommRequest& r) {
      if (r.kind != CommKind::ReduceScatter) return;
      // Each rank hands in the halves of its gradients the wrong way round.
      double* data = r.input.data<double>();
      std::swap_ranges(data, data + r.input.numel() / 2, data + r.input.numel() / 2);
    });
}

}  // namespace
}  // namespace megatron::testing
