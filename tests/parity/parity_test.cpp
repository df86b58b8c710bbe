#include <gtest/gtest.h>

#include "megatron/comm/run_ranks.h"
#include "megatron/training/step/rank_trainer.h"
#include "parity/cases.h"
#include "parity/pass_through.h"

namespace megatron::testing {
namespace {

const Layout kLayouts[] = {
    {.name = "tp2", .tp = 2},
    {.name = "tp2_sp", .tp = 2, .sp = true},
    {.name = "pp2", .pp = 2},
    {.name = "pp4", .pp = 4},
    {.name = "pp2_vpp2", .pp = 2, .vpp = 2},
    {.name = "dp2", .dp = 2},
    {.name = "dp4_micro4", .dp = 4, .micro_batch = 4},
    {.name = "tp2_pp2", .tp = 2, .pp = 2},
    {.name = "tp2_sp_pp2_vpp2", .tp = 2, .pp = 2, .vpp = 2, .sp = true},
    {.name = "tp2_sp_pp2_dp2", .tp = 2, .pp = 2, .dp = 2, .sp = true},
    {.name = "pp2_layout", .pp = 2, .stages = "Ettt|tL"},
    {.name = "tp2_pp4_dp2", .tp = 2, .pp = 4, .dp = 2},
};

Config with_every_kind_of_attention() {
  Config config = small_gpt();
  ModelConfig& model = config.model;
  use_every_kind_of_attention(model);
  model.embedding_multiplier = 3;
  return config;
}

TEST(Parity, EveryKindOfAttention) { check_layouts(with_every_kind_of_attention(), kLayouts); }
TEST(Parity, GroupedQueryTiedRope) { check_layouts(small_gpt(), kLayouts); }
TEST(Parity, LayerNormBiasLearnedPositionsUntied) { check_layouts(with_biases_and_layernorm(), kLayouts); }
TEST(Parity, Dropout) { check_layouts(with_dropout(), kLayouts); }

// One rank and several that share a GPU train like one rank on the CPU.
TEST(CudaParity, RanksThatShareAGpu) {
  for (const Config& config : {small_gpt(), with_biases_and_layernorm(), with_dropout()})
    check_on_gpu(config, kLayouts);
}
TEST(CudaParity, EveryKindOfAttention) { check_on_gpu(with_every_kind_of_attention(), kLayouts); }

TEST(CudaParity, NarrowerNumbers) {
  for (const Config& config :
       {small_gpt(), with_biases_and_layernorm(), with_dropout(), with_every_kind_of_attention()})
    check_narrow_on_gpu(config);
}

// A captured step computes what the step itself does, bit for bit; one with other labels runs as always.
TEST(CudaParity, CapturedSteps) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no usable GPU";
  const Device gpu{DeviceType::Cuda, 0};
  for (Config config : {small_gpt(), with_biases_and_layernorm()}) {
    config.precision.deterministic_mode = true;
    auto batches = batches_for(config, 8);
    for (size_t i = 5; i < batches[5].size(); i += 9) batches[5][i] = -100;
    for (DType dtype : {DType::F64, DType::BF16}) {
      config.execution.cuda_graph_impl = GraphImpl::none;
      const Trained plain = train(config, {}, batches, dtype, {}, gpu);
      config.execution.cuda_graph_impl = GraphImpl::full_iteration;
      config.execution.cuda_graph_warmup_steps = 2;
      expect_equal(plain, train(config, {}, batches, dtype, {}, gpu), 0);
    }
  }
}

// Nothing is captured where it cannot be.
TEST(CapturedSteps, NeedAGpu) {
  Config config = small_gpt();
  config.execution.cuda_graph_impl = GraphImpl::full_iteration;
  RankContext ctx;
  ParallelContext alone;
  EXPECT_THROW(RankTrainer(ctx, config, alone, DType::F32), ConfigError);
}

// Threads and processes without NCCL move GPU memory with the host's help. On the meta device, as a GPU
// would.
TEST(CapturedSteps, OfSeveralRanksNeedNccl) {
  Config config = small_gpt();
  config.execution.cuda_graph_impl = GraphImpl::full_iteration;
  config.parallel.tensor_model_parallel_size = 2;
  run_ranks(2, [&](int rank, ProcessGroup& world) {
    RankContext ctx(kMeta, 1, rank);
    const ParallelContext parallel = ParallelContext::from_sizes(world, {.world = 2, .tp = 2});
    try {
      RankTrainer trainer(ctx, config, parallel, DType::BF16);
      ADD_FAILURE() << "not refused";
    } catch (const ConfigError& error) {
      EXPECT_STREQ(error.what(),
                   "model.cuda_graph_impl = full_iteration: CUDA graph capture unavailable: these ranks are "
                   "connected by the host; give each rank a GPU of its own and use --comm nccl, or leave "
                   "--cuda-graph-impl (--graphs) out");
    }
    world.barrier();
  });
}

// The host asks for a whole step and waits once, for its loss and norm.
TEST(CudaParity, AStepWaitsOnce) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no usable GPU";
  Config config = small_gpt();
  auto batches = batches_for(config, 4);
  RankContext ctx(Device{DeviceType::Cuda, 0});
  ParallelContext alone;
  RankTrainer trainer(ctx, config, alone, DType::BF16);
  trainer.step(ctx, batches[0], 1e-2);
  for (int step = 1; step < 4; ++step) {
    uint64_t before = ctx.runtime->host_waits(), taken = ctx.allocator->statistics().device_allocations;
    trainer.step(ctx, batches[static_cast<size_t>(step)], 1e-2);
    EXPECT_EQ(ctx.runtime->host_waits() - before, 1u) << "step " << step;
    EXPECT_EQ(ctx.allocator->statistics().device_allocations, taken) << "step " << step;
  }
}

// A group whose n-th all-reduce does nothing: what a forgotten collective looks like.
class LeavesOneOut final : public PassThrough {
 public:
  LeavesOneOut(ProcessGroup inner, std::shared_ptr<int> countdown)
      : PassThrough(std::move(inner)), countdown_(std::move(countdown)) {}

 private:
  bool drops(const CommRequest& request) override {
    return request.kind == CommKind::AllReduce && (*countdown_)-- == 0;
  }
  std::shared_ptr<GroupBackend> part(ProcessGroup group) override {
    return std::make_shared<LeavesOneOut>(std::move(group), countdown_);
  }

  std::shared_ptr<int> countdown_;
};

TEST(PlantedFault, ASkippedAllReduceTurnsParityRed) {
  Config config = small_gpt();
  auto batches = batches_for(config, 2);
  Trained one = train(config, {}, batches);
  Layout layout{.name = "tp2", .tp = 2};
  for (int skipped : {0, 5, 20}) {
    Trained faulty =
        train(apply(config, layout), sizes_of(layout), batches, DType::F64, [&](const ProcessGroup& world) {
          return ProcessGroup(std::make_shared<LeavesOneOut>(world, std::make_shared<int>(skipped)));
        });
    std::string where;
    EXPECT_GT(difference(one.parameters, faulty.parameters, &where), 1e-6) << "all-reduce " << skipped;
  }
}

TEST(PlantedFault, AWrongDivisorTurnsParityRed) {
  Config config = small_gpt();
  auto batches = batches_for(config, 2);
  Trained one = train(config, {}, batches);
  Layout layout{.name = "dp2", .dp = 2};
  auto halved = batches;
  for (auto& batch : halved)
    batch.resize(batch.size() / 2);  // each rank of two divides by a batch that is half as large
  Trained faulty = train(apply(config, layout), sizes_of(layout), halved);
  std::string where;
  EXPECT_GT(difference(one.gradients, faulty.gradients, &where), 1e-6);
}

}  // namespace
}  // namespace megatron::testing
