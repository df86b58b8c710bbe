#include <gtest/gtest.h>

#include <cmath>

#include "unit/cli/run_command.h"

// What pretrain says of memory before it starts and after two iterations.
namespace megatron {
namespace {

Outcome pretrain(std::vector<std::string> more) {
  std::vector<std::string> args = {"pretrain"};
  for (const char* word : {"--num-layers",
                           "4",
                           "--hidden-size",
                           "128",
                           "--num-attention-heads",
                           "4",
                           "--ffn-hidden-size",
                           "384",
                           "--seq-length",
                           "128",
                           "--max-position-embeddings",
                           "128",
                           "model.vocab_size=512",
                           "--swiglu",
                           "--disable-bias-linear",
                           "--micro-batch-size",
                           "2",
                           "--global-batch-size",
                           "8",
                           "--mock-data",
                           "--train-iters",
                           "3",
                           "--lr",
                           "1e-3",
                           "--device",
                           "cpu"})
    args.emplace_back(word);
  args.insert(args.end(), more.begin(), more.end());
  return run_command(args);
}

// The figure behind `words`.
double figure(const std::string& text, const std::string& words) {
  const size_t at = text.find(words);
  EXPECT_NE(at, std::string::npos) << words << " in " << text;
  return at == std::string::npos ? NAN : std::stod(text.substr(at + words.size()));
}

// In fp32: for bf16 GEMMs, which a processor may not have, it takes scratch memory that is not planned.
TEST(PretrainMemory, HeldIsWhatWasPlanned) {
  const std::vector<std::vector<std::string>> layouts = {
      {},
      {"--ranks", "4", "-tp", "2", "--sequence-parallel", "-pp", "2"},
      {"--ranks", "2", "--use-distributed-optimizer"},
      {"--ranks", "2", "--use-megatron-fsdp", "--data-parallel-sharding-strategy", "optim_grads_params"},
      {"--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1"},
      {"--recompute-granularity", "selective", "--recompute-modules", "mlp"}};
  for (const std::vector<std::string>& layout : layouts) {
    const Outcome outcome = pretrain(layout);
    std::string name;
    for (const std::string& word : layout) name += word + " ";
    ASSERT_EQ(outcome.code, 0) << name << outcome.err;
    EXPECT_NE(outcome.err.find("planned memory in "), std::string::npos) << outcome.err;
    EXPECT_NEAR(figure(outcome.err, " planned ("), 0, 5) << name << outcome.err;  // per cent
  }
}

}  // namespace
}  // namespace megatron
