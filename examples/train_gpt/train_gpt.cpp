// Trains a small GPT with the library alone: two tensor-parallel ranks as threads of this process.
//
//   train_gpt            learns to count: each token is the one before it plus a step that it must work out
#include <fmt/core.h>

#include <random>

#include "megatron/comm/run_ranks.h"
#include "megatron/models/decoder_shape.h"
#include "megatron/training/step/rank_trainer.h"

using namespace megatron;

namespace {

Config tiny_gpt() {
  Config config;
  config.model = llama_style(
      {.layers = 2, .hidden = 64, .heads = 4, .groups = 4, .ffn = 128, .vocab = 64, .length = 16});
  config.parallel.tensor_model_parallel_size = 2;
  config.parallel.sequence_parallel = true;
  config.train.micro_batch_size = 8;
  return config;
}

// Sequences that count up modulo 64 by steps of 1 to 4.
std::vector<int64_t> counting(int64_t sequences, int64_t length, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < sequences; ++i) {
    int64_t value = random() % 64, step = 1 + random() % 4;
    for (int64_t t = 0; t <= length; ++t, value = (value + step) % 64) tokens.push_back(value);
  }
  return tokens;
}

}  // namespace

int main() {
  Config config = tiny_gpt();
  run_ranks(2, [&](int, const ProcessGroup& world) {
    RankContext ctx(kCpu, 1, world.rank());
    ParallelContext parallel = ParallelContext::from_sizes(world, {.world = 2, .tp = 2});
    RankTrainer trainer(ctx, config, parallel, DType::F32);
    for (unsigned step = 1; step <= 200; ++step) {
      StepReport report = trainer.step(ctx, counting(16, config.model.seq_length, step), 3e-3);
      if (world.rank() == 0 && step % 20 == 0) fmt::print("step {:3}  loss {:.4f}\n", step, report.loss);
    }
  });
}
