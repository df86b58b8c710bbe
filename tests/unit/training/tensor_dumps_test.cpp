#include "megatron/training/log/tensor_dumps.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "megatron/checkpoint/load.h"
#include "megatron/training/run/run.h"
#include "support/temp_dir.h"

namespace megatron {
namespace {

constexpr std::string_view kRun =
    "--num-layers 2 --hidden-size 16 --num-attention-heads 2 --seq-length 8 --max-position-embeddings 8 "
    "--vocab-size 32 --make-vocab-size-divisible-by 2 --micro-batch-size 1 --global-batch-size 4 --lr 1e-2 "
    "--lr-decay-style constant --mock-data --device cpu --train-iters 3 --attention-dropout 0 "
    "--hidden-dropout 0 --clip-grad 0.01 ";

struct Norms : Callback {
  void on(RunEvent event, RunView& view) override {
    if (event == RunEvent::step_end && view.is_first_rank()) norms.push_back(view.report->grad_norm);
  }
  std::vector<double> norms;
};

using Values = std::map<std::string, std::vector<float>>;

Values read(const std::string& folder) {
  CheckpointReader reader(folder);
  RankContext ctx;
  Values values;
  for (const StoredTensor& tensor : reader.index().tensors) {
    const Tensor whole = ctx.empty(tensor.shape, DType::F32);
    const ShardedTensor wanted{tensor.name, ShardSpec::whole(tensor.shape), whole};
    reader.load(ctx, {&wanted, 1});
    values[tensor.name] = ctx.to_vector<float>(whole);
  }
  return values;
}

struct Dumped {
  Values wgrads, params, checkpoint;
  std::vector<double> norms;
};

Dumped train(const std::string& layout) {
  testing::TempDir folder;
  RunSpec spec = run_spec(std::string(kRun) + layout +
                          fmt::format(" --save {} --save-wgrads-interval 2 --save-params-interval 3 "
                                      "--no-save-optim",
                                      folder.path()));
  const auto norms = std::make_shared<Norms>();
  spec.callbacks = {norms};
  spec.log = Log(LogLevel::error);
  spec.out = nullptr;
  run(spec);
  return {read(folder / "wgrads/iter_0000002"), read(folder / "params/iter_0000003"), read(folder.path()),
          norms->norms};
}

void expect_near(const Values& one, const Values& other, double tolerance) {
  ASSERT_EQ(one.size(), other.size());
  for (const auto& [name, values] : one) {
    ASSERT_TRUE(other.contains(name)) << name;
    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_NEAR(values[i], other.at(name)[i], tolerance) << name << " " << i;
  }
}

// Dumps hold what all ranks have together, whatever they share; gradients are those of the loss, unclipped.
TEST(TensorDumps, AreThoseOfTheWholeModel) {
  const Dumped one = train("--ranks 1");
  double sum = 0;
  for (const auto& [name, values] : one.wgrads)
    for (const float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
  ASSERT_EQ(one.norms.size(), 3u);
  EXPECT_NEAR(std::sqrt(sum), one.norms[1], 1e-6 * one.norms[1]);
  EXPECT_EQ(one.params, one.checkpoint);
  EXPECT_EQ(one.wgrads.size(), one.params.size());
  for (const char* layout : {"--ranks 4 -tp 2 --use-distributed-optimizer",
                             "--ranks 4 -pp 2 --use-megatron-fsdp --calculate-per-token-loss", "--ranks 2"}) {
    SCOPED_TRACE(layout);
    const Dumped other = train(layout);
    expect_near(one.wgrads, other.wgrads, 2e-6);
    expect_near(one.params, other.params, 2e-5);
  }
}

}  // namespace
}  // namespace megatron
