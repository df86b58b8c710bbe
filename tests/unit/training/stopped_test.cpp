#include <gtest/gtest.h>

#include "megatron/comm/run_ranks.h"
#include "megatron/models/decoder_shape.h"
#include "megatron/training/step/rank_trainer.h"

// A world that is stopped behind the last operation of a step: no numbers of it are told.
namespace megatron {
namespace {

class Stops final : public Tracer {
 public:
  Stops(const ProcessGroup& world, std::string where) : world_(world), where_(std::move(where)) {}
  void op(const char*, Phase, const Cost&) override {}
  void begin(const char* name) override {
    if (name == where_) world_.abort("disk full");
  }
  void end() override {}

 private:
  const ProcessGroup& world_;
  std::string where_;
};

void check(const ProcessGroup& world, const char* where,
           const std::function<void(RankTrainer&, RankContext&)>& fn) {
  Config config;
  config.model =
      llama_style({.layers = 2, .hidden = 32, .heads = 4, .groups = 2, .ffn = 48, .vocab = 64, .length = 8});
  config.train.micro_batch_size = 1;
  RankContext ctx(kCpu, 1, world.rank());
  const ParallelContext parallel = ParallelContext::from_sizes(world, {.world = world.size()});
  RankTrainer trainer(ctx, config, parallel, DType::F32);
  fn(trainer, ctx);  // while all is well
  Stops stops(world, where);
  ctx.tracer = &stops;
  EXPECT_THROW(fn(trainer, ctx), CommAborted);
}

const std::vector<int64_t> kTokens(2 * 9, 5);
void step(RankTrainer& trainer, RankContext& ctx) { trainer.step(ctx, kTokens, 1e-3); }
void evaluate(RankTrainer& trainer, RankContext& ctx) { trainer.evaluate(ctx, kTokens); }

TEST(StoppedStep, TellsNoLoss) {
  run_ranks(2, [](int, const ProcessGroup& world) { check(world, "optimizer", step); });
  check(ProcessGroup::self(), "optimizer", step);
}

TEST(StoppedStep, TellsNoEvaluation) { check(ProcessGroup::self(), "output_layer", evaluate); }

}  // namespace
}  // namespace megatron
