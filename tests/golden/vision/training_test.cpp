#include <gtest/gtest.h>

#include <cmath>

#include "golden/hf_models/gradients.h"
#include "megatron/comm/run_ranks.h"
#include "megatron/models/parallel_setup.h"
#include "megatron/training/run/image_data.h"
#include "megatron/training/setup/checkpoint_tensors.h"
#include "megatron/training/step/rank_trainer.h"
#include "support/golden.h"

// Conversations about image files, from the files to losses and gradients, as transformers has them.
namespace megatron {
namespace {

using testing::golden_path;
using testing::to_doubles;

struct Layout {
  const char* name;
  int tp = 1, pp = 1, dp = 1, cp = 1;
  bool sp = false, zero3 = false;

  int ranks() const { return tp * pp * dp * cp; }
};

class VisionTraining : public ::testing::TestWithParam<const char*> {
 protected:
  std::string path(const std::string& file) const {
    return golden_path("vision", std::string(GetParam()) + "/" + file);
  }

  Config config(const Layout& layout = {"one"}, const char* data = "data.jsonl") const {
    Config config;
    config.model = bridge_->model_config();
    config.model.seq_length = 88;
    config.dataset.data_path = {path(data)};
    config.dataset.split = "1,0,0";
    config.dataset.seq_length = 88;
    config.tokenizer.tokenizer_type = TokenizerKind::huggingface;
    config.tokenizer.tokenizer_model =
        path("model/config.json").substr(0, path("model/config.json").rfind('/'));
    config.parallel.tensor_model_parallel_size = layout.tp;
    config.parallel.pipeline_model_parallel_size = layout.pp;
    config.parallel.context_parallel_size = layout.cp;
    config.parallel.sequence_parallel = layout.sp;
    if (layout.zero3) {
      config.ddp.use_megatron_fsdp = true;
      config.ddp.data_parallel_sharding_strategy = ShardingStrategy::optim_grads_params;
    }
    config.train.micro_batch_size = 1;
    config.train.global_batch_size = 3;
    config.train.train_iters = 1;
    config.optimizer.lr = 1e-2;
    config.optimizer.clip_grad = 0;
    return config;
  }

  // The three rows, one in a micro-batch each.
  static std::vector<Batch> batches(const Config& config, int64_t first = 0, int64_t count = 3) {
    std::vector<Share> shares;
    for (int64_t i = first; i < first + count; ++i) shares.push_back({i, 1});
    return image_data(config, Log()).train->step({.shares = shares, .samples = 3});
  }

  std::shared_ptr<const AutoBridge> bridge_ = std::make_shared<const AutoBridge>(
      path("model/config.json").substr(0, path("model/config.json").rfind('/')));
  SafetensorsFile io_{path("io.safetensors")};
};

TEST_P(VisionTraining, RowsAreThoseOfTheProcessor) {
  for (const char* data : {"data.jsonl", "data.tar"}) {
    const std::vector<Batch> rows = batches(config({"one"}, data));
    ASSERT_EQ(rows.size(), 3u);
    for (size_t i = 0; i < rows.size(); ++i) {
      SCOPED_TRACE(fmt::format("{} row {}", data, i));
      const std::vector<double> ids = to_doubles(io_.tensor(fmt::format("ids.{}", i))),
                                labels = to_doubles(io_.tensor(fmt::format("labels.{}", i)));
      ASSERT_GE(rows[i].ids.size(), ids.size());
      for (size_t t = 0; t + 1 < ids.size(); ++t) {  // the last token is predicted, and read by nobody
        EXPECT_EQ(static_cast<double>(rows[i].ids[t]), ids[t]) << t;
        EXPECT_EQ(static_cast<double>(rows[i].labels[t]), labels[t + 1]) << t;
      }
      for (size_t t = ids.size() - 1; t < rows[i].labels.size(); ++t) EXPECT_LT(rows[i].labels[t], 0) << t;
      if (i == 2) continue;
      const Tensor pixels = rows[i].extra.at("pixels"), wanted = io_.tensor(fmt::format("pixels.{}", i));
      ASSERT_EQ(pixels.numel(), wanted.numel());
      if (wanted.rank() != 2) continue;  // planes: the test of processors compares them
      const auto own = to_doubles(pixels), theirs = to_doubles(wanted);
      for (size_t k = 0; k < own.size(); ++k) ASSERT_NEAR(own[k], theirs[k], 1e-6);
    }
  }
}

// What one rank makes of the three rows.
struct Step {
  double loss = 0, norm = 0;
  std::map<std::string, Tensor> gradients;  // of one rank alone
};

Step run(const Config& config, const AutoBridge& bridge, const Layout& layout,
         const std::function<std::vector<Batch>(int replica)>& rows, DType dtype = DType::F32) {
  Step result;
  run_ranks(layout.ranks(), [&](int rank, const ProcessGroup& world) {
    RankContext ctx(kCpu, 1, rank);
    const auto parallel = ParallelContext::from_sizes(world, parallel_sizes(config, layout.ranks()));
    RankTrainer trainer(ctx, config, parallel, dtype);
    trainer.set_weights(ctx, [&] { bridge.load(ctx, trainer.parameters()); });
    const std::vector<Batch> own = rows(parallel.replica());
    const Gradients gradients = trainer.gradients(ctx, own, {.iteration = 0, .batches = 3});
    if (layout.ranks() == 1) result.gradients = testing::hf_gradients(ctx, bridge, trainer.parameters());
    const StepReport report = trainer.update(ctx, gradients, Rates(1e-2));
    if (rank == 0) result.loss = report.loss, result.norm = report.grad_norm;
  });
  return result;
}

TEST_P(VisionTraining, LossAndGradientsAreThoseOfTransformers) {
  const Config own = config();
  const Step step = run(own, *bridge_, {"one"}, [&](int) { return batches(own); });
  EXPECT_NEAR(step.loss, to_doubles(io_.tensor("loss"))[0], 2e-5);
  const SafetensorsFile expected(path("grads.safetensors"));
  size_t compared = 0;
  for (const auto& [name, gradient] : step.gradients) {
    const auto ours = to_doubles(gradient), theirs = to_doubles(expected.tensor(name));
    ASSERT_EQ(ours.size(), theirs.size()) << name;
    double largest = 1e-3, difference = 0;
    for (size_t i = 0; i < ours.size(); ++i) {
      largest = std::max(largest, std::abs(theirs[i]));
      difference = std::max(difference, std::abs(ours[i] - theirs[i]));
    }
    EXPECT_LT(difference, 2e-4 * largest) << name;
    ++compared;
  }
  EXPECT_GT(compared, 40u);
}

TEST_P(VisionTraining, EveryLayoutMakesTheSameStep) {
  const Config own = config();
  const Step one = run(
      own, *bridge_, {"one"}, [&](int) { return batches(own); }, DType::F64);
  std::vector<Layout> layouts = {{"tp2", 2},
                                 {.name = "tp2 sp", .tp = 2, .sp = true},
                                 {"pp2", 1, 2},
                                 {.name = "tp2 pp2 sp", .tp = 2, .pp = 2, .sp = true},
                                 {.name = "dp3", .dp = 3},
                                 {.name = "zero3", .dp = 3, .zero3 = true}};
  if (!own.model.vision_bidirectional) layouts.push_back({.name = "cp2", .cp = 2});
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(layout.name);
    const Config config = this->config(layout);
    const Step step = run(
        config, *bridge_, layout,
        [&](int replica) { return layout.dp == 1 ? batches(config) : batches(config, replica, 1); },
        DType::F64);
    EXPECT_NEAR(step.loss, one.loss, 1e-9);
    EXPECT_NEAR(step.norm, one.norm, 1e-8 * one.norm);
  }
}

bool is_projection(std::string_view name) {
  return name.starts_with("vision_model.merger.") || name.starts_with("multi_modal_projector.") ||
         name.starts_with("vision_projection.");
}

TEST_P(VisionTraining, AProjectorMayBeMissing) {
  RankContext ctx;
  const ParallelContext alone;
  RankTrainer trainer(ctx, config(), alone, DType::F32);
  TensorSource source;
  source.path = "without a projector";
  for (const Parameter* parameter : trainer.parameters())
    if (!is_projection(parameter->name))
      source.tensors.push_back({parameter->name, DType::F32, parameter->shard.global_shape, {}});
  std::ranges::sort(source.tensors, {}, &StoredTensor::name);
  source.read = [](RankContext&, const ShardedTensor& part) {
    std::fill_n(part.tensor.data<float>(), part.tensor.numel(), 2.0F);
  };
  EXPECT_THROW(load_run(ctx, source, trainer, {.optimizer = false}), ConfigError);
  const LoadOptions lenient{.optimizer = false, .allow_missing_vision_projection = true};
  const LoadReport report = load_run(ctx, source, trainer, lenient);
  EXPECT_GT(report.missing.size(), 0u);
  EXPECT_EQ(report.missing.size() + source.tensors.size(), trainer.parameters().size());
  for (Parameter* parameter : trainer.parameters()) {
    const std::vector<float> values = ctx.to_vector<float>(parameter->value);
    const bool read = std::ranges::all_of(values, [](float value) { return value == 2; });
    EXPECT_EQ(read, !is_projection(parameter->name)) << parameter->name;
  }
  source.tensors.pop_back();
  EXPECT_THROW(load_run(ctx, source, trainer, lenient), ConfigError) << "other parts may not";
}

TEST_P(VisionTraining, FrozenPartsStayAsTheyAre) {
  for (const Layout& layout : {Layout{"one"}, Layout{"pp2", 1, 2}}) {
    SCOPED_TRACE(layout.name);
    Config own = config(layout);
    own.model.freeze_language_model = own.model.freeze_vision_model = true;
    run_ranks(layout.ranks(), [&](int rank, const ProcessGroup& world) {
      RankContext ctx(kCpu, 1, rank);
      const auto parallel = ParallelContext::from_sizes(world, parallel_sizes(own, layout.ranks()));
      RankTrainer trainer(ctx, own, parallel, DType::F32);
      trainer.set_weights(ctx, [&] { bridge_->load(ctx, trainer.parameters()); });
      std::map<std::string, std::vector<float>> before;
      for (Parameter* parameter : trainer.parameters())
        before[parameter->name] = ctx.to_vector<float>(parameter->value);
      const StepReport report = trainer.step(ctx, batches(own), Rates(1e-2));
      EXPECT_GT(report.grad_norm, 0);
      size_t moved = 0;
      for (Parameter* parameter : trainer.parameters()) {
        const bool same = ctx.to_vector<float>(parameter->value) == before[parameter->name];
        const std::string_view name = parameter->name;
        EXPECT_TRUE(same || is_projection(name)) << name;
        moved += same ? 0 : 1;
      }
      EXPECT_EQ(moved > 0, rank == 0);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Towers, VisionTraining, ::testing::Values("qwen2_5_vl", "gemma3", "llava"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace megatron
