#include <gtest/gtest.h>

#include <cmath>

#include "megatron/comm/run_ranks.h"
#include "megatron/datasets/images/packed_images.h"
#include "megatron/models/decoder_shape.h"
#include "megatron/models/parallel_setup.h"
#include "megatron/models/patch_order.h"
#include "megatron/models/vision_language.h"
#include "megatron/training/step/rank_trainer.h"

// Rows with images that share a row of the batch, and images that keep their ratio of sides.
namespace megatron {
namespace {

constexpr int64_t kRows = 7, kLength = 24;

Config clip_model() {
  Config config;
  config.model = llama_style(
      {.layers = 2, .hidden = 32, .heads = 4, .groups = 2, .ffn = 64, .vocab = 64, .length = kLength});
  VisionConfig& vision = config.model;
  vision.vision_tower = VisionTowerKind::clip;
  vision.vision_image_size = vision.vision_image_width = 56;
  vision.vision_patch_size = 14;
  vision.vision_class_token = false;
  vision.image_token_id = -200;
  vision.vision_num_layers = 2;
  vision.vision_hidden_size = 16;
  vision.vision_num_attention_heads = 2;
  vision.vision_ffn_hidden_size = 32;
  vision.vision_projector_size = 24;
  vision.vision_output_size = 32;
  vision.vision_pixel_shuffle = true;
  vision.vision_init_method_std = 0.3;
  config.dataset.seq_length = kLength;
  config.model.calculate_per_token_loss = true;
  config.optimizer.clip_grad = 0;
  return config;
}

// Qwen's kind: positions have three rows, and begin anew in each packed row.
Config qwen_model() {
  Config config = clip_model();
  VisionConfig& vision = config.model;
  vision.vision_tower = VisionTowerKind::qwen2;
  vision.image_token_id = 60;
  vision.vision_pixel_shuffle = false;
  config.model.position_embedding_type = PositionEmbedding::mrope;
  config.model.mrope_section = {1, 1, 2};
  return config;
}

// Rows of unequal lengths, each with an image of its own size before its text.
SampleRows rows_of(const Config& config) {
  const VisionConfig vision = config.model;
  return {
      kRows, [vision](int64_t row) {
        ImageSample sample;
        const PatchGrid grid{1, row % 2 == 0 ? 4 : 2, row % 3 == 0 ? 2 : 4};
        sample.tokens.ids.assign(static_cast<size_t>(vision.image_tokens(grid.patches())),
                                 vision.image_token_id);
        for (int64_t i = 0; i < 4 + 3 * row % 8; ++i) sample.tokens.ids.push_back((7 * row + i * i) % 50);
        for (int64_t id : sample.tokens.ids)
          sample.tokens.learned.push_back(vision.is_image_token(id) ? 0 : 1);
        const int64_t frames = vision.is_qwen() ? vision.vision_temporal_patch_size : 1;
        sample.images.features = 3 * frames * 14 * 14;
        sample.images.grids = {grid};
        for (int64_t i = 0; i < grid.patches() * sample.images.features; ++i)
          sample.images.pixels.push_back(static_cast<float>(std::sin(0.37 * static_cast<double>(i + row))));
        return sample;
      }};
}

ImageRows split_of(const Config& config) {
  return ImageRows(rows_of(config), "made", {0, 1}, 0, std::nullopt);
}

std::vector<Batch> one_step(const BatchSource& source, int64_t samples, int64_t micro) {
  std::vector<Share> shares;
  for (int64_t first = 0; first < samples; first += micro)
    shares.push_back({.first = first, .count = std::min(micro, samples - first)});
  return source.step({.shares = shares, .samples = samples});
}

std::vector<Batch> unpacked(const Config& config) {
  const auto rows = std::make_shared<const ImageRows>(split_of(config));
  return one_step(
      *image_source([rows](int64_t i) { return rows->sample(i); }, SampleOrder::in_turn(kRows), kLength, 0),
      kRows, 1);
}

std::vector<Batch> packed(const Config& config, int64_t buffer, int64_t micro = 1, int64_t multiple = 1) {
  const ImagePacking packing{.buffer = buffer, .length = kLength, .most = kLength, .multiple = multiple};
  const auto packs = std::make_shared<const PackedImageRows>(split_of(config), packing, std::nullopt);
  EXPECT_LT(packs->size(), kRows);
  return one_step(*packed_image_source([packs](int64_t i) { return packs->sample(i); },
                                       SampleOrder::in_turn(packs->size()), packing),
                  packs->size(), micro);
}

struct Step {
  double loss = 0, norm = 0;
};

Step trained(Config config, const std::vector<Batch>& batches, ParallelSizes sizes = {}) {
  config.parallel.tensor_model_parallel_size = sizes.tp;
  config.parallel.pipeline_model_parallel_size = sizes.pp;
  config.parallel.context_parallel_size = sizes.cp;
  config.train.micro_batch_size = batches[0].rows;
  config.train.global_batch_size = static_cast<int64_t>(batches.size()) * batches[0].rows;
  Step result;
  run_ranks(static_cast<int>(sizes.world), [&](int rank, const ProcessGroup& world) {
    RankContext ctx(kCpu, 1, rank);
    const auto parallel = ParallelContext::from_sizes(world, parallel_sizes(config, sizes.world));
    RankTrainer trainer(ctx, config, parallel, DType::F64);
    const StepReport report = trainer.step(ctx, batches, Rates(1e-2));
    if (rank == 0) result = {report.loss, report.grad_norm};
  });
  return result;
}

TEST(PackedImages, TrainAsUnpackedOnes) {
  for (const Config& config : {clip_model(), qwen_model()}) {
    SCOPED_TRACE(config.model.is_qwen() ? "qwen" : "clip");
    const Step plain = trained(config, unpacked(config));
    EXPECT_GT(plain.norm, 0);
    const auto expect_same = [&](const char* name, const Step& step) {
      EXPECT_NEAR(step.loss, plain.loss, 1e-12 * plain.loss) << name;
      EXPECT_NEAR(step.norm, plain.norm, 1e-10 * plain.norm) << name;
    };
    expect_same("all at once", trained(config, packed(config, kRows)));
    expect_same("three at a time", trained(config, packed(config, 3)));
    expect_same("tp2", trained(config, packed(config, kRows), {.world = 2, .tp = 2}));
    expect_same("pp2", trained(config, packed(config, kRows), {.world = 2, .pp = 2}));
    expect_same("cp2", trained(config, packed(config, kRows, 1, 4), {.world = 2, .cp = 2}));
  }
}

TEST(PackedImages, EveryRowIsInOnePackOfItsBuffer) {
  const Config config = clip_model();
  const ImageRows rows = split_of(config);
  const PackedImageRows packs(split_of(config), {.buffer = 4, .length = kLength, .most = 20}, 100);
  EXPECT_EQ(packs.size(), 100);
  // The lengths of rows tell them apart only by their pixels.
  const auto first_pixel = [](const ImageSample& sample) { return sample.images.pixels.front(); };
  std::vector<float> wanted, seen;
  for (int64_t row = 0; row < kRows; ++row) wanted.push_back(first_pixel(rows.sample(row)));
  int64_t count = 0;
  for (; std::ssize(seen) < kRows; ++count) {
    int64_t tokens = 0;
    for (const auto& sample : packs.sample(count)) {
      tokens += std::ssize(sample->tokens.ids) - 1;
      seen.push_back(first_pixel(*sample));
    }
    EXPECT_LE(tokens, 20);
    if (std::ssize(seen) == 4) EXPECT_TRUE(std::is_permutation(seen.begin(), seen.end(), wanted.begin()));
  }
  EXPECT_TRUE(std::is_permutation(seen.begin(), seen.end(), wanted.begin(), wanted.end()));
  // Another epoch, and a reader that begins there.
  const PackedImageRows later(split_of(config), {.buffer = 4, .length = kLength, .most = 20}, 100);
  EXPECT_EQ(first_pixel(*later.sample(count + 1)[0]), first_pixel(*packs.sample(1)[0]));
}

TEST(PackedImages, PositionsOfImagesBeginAnew) {
  const std::vector<int64_t> ids = {9, 9, 9, 9, 1, 2, 3, 9, 1};
  const auto is_image = [](int64_t id) { return id == 9; };
  const std::vector<PatchGrid> grids = {{1, 4, 4}, {1, 2, 2}};
  const std::vector<int64_t> documents = {6, 3};
  const std::vector<int64_t> positions = image_positions(ids, 1, is_image, grids, 2, documents);
  EXPECT_EQ(std::vector<int64_t>(positions.begin(), positions.begin() + 9),
            (std::vector<int64_t>{0, 0, 0, 0, 2, 3, 0, 1, 2}));
  EXPECT_EQ(std::vector<int64_t>(positions.begin() + 9, positions.begin() + 18),
            (std::vector<int64_t>{0, 0, 1, 1, 2, 3, 0, 1, 2}));
}

// The example of torch.nn.Upsample: [[1, 2], [3, 4]], twice as large.
TEST(Resolution, PositionsAreInterpolatedAsPyTorchDoes) {
  const std::vector<double> table = {1, 2, 3, 4};
  const auto at = [&](const PatchGrid& grid, int64_t side) {
    std::vector<double> values;
    for (const Neighbours& from : interpolated_places(grid, side)) {
      double sum = 0;
      for (size_t k = 0; k < 4; ++k) sum += from.weights[k] * table[static_cast<size_t>(from.places[k])];
      values.push_back(sum);
    }
    return values;
  };
  EXPECT_EQ(at({1, 4, 4}, 2), (std::vector<double>{1, 1.25, 1.75, 2, 1.5, 1.75, 2.25, 2.5, 2.5, 2.75, 3.25,
                                                   3.5, 3, 3.25, 3.75, 4}));
  EXPECT_EQ(at({1, 2, 2}, 2), table);
  EXPECT_EQ(at({1, 1, 2}, 2), (std::vector<double>{2, 3}));
}

TEST(Resolution, ImagesKeepTheirRatio) {
  VisionConfig vision = clip_model().model;
  vision.dynamic_resolution = true;
  const auto grid_of = [&](int64_t width, int64_t height) {
    const Image image{.width = width,
                      .height = height,
                      .rgb = std::vector<uint8_t>(static_cast<size_t>(3 * width * height), 90)};
    const ImagePatches patches = ImageProcessor::open(vision, "").tiles(image, 1);
    EXPECT_EQ(std::ssize(patches.pixels), patches.grids[0].patches() * patches.features);
    return std::array{patches.grids[0].rows, patches.grids[0].columns};
  };
  using Grid = std::array<int64_t, 2>;
  EXPECT_EQ(grid_of(56, 28), (Grid{2, 4}));
  EXPECT_EQ(grid_of(1000, 1000), (Grid{4, 4})) << "as many patches as the square at most";
  EXPECT_EQ(grid_of(400, 100), (Grid{2, 8}));
  EXPECT_EQ(grid_of(5, 5), (Grid{2, 2})) << "two patches along a side, which become one token";
  vision.vision_pixel_shuffle = false;
  EXPECT_EQ(grid_of(42, 28), (Grid{2, 3}));
  vision.dynamic_resolution_max_patches = 100;
  EXPECT_EQ(grid_of(1000, 1000), (Grid{10, 10}));
  vision.dynamic_resolution_min_patches = 16;
  EXPECT_EQ(grid_of(28, 28), (Grid{4, 4}));
  vision.dynamic_resolution = false;
  EXPECT_EQ(grid_of(400, 100), (Grid{4, 4}));
}

// The table of positions learns from every image, whatever its size.
TEST(Resolution, GradientsAreThoseOfDifferences) {
  Config config = clip_model();
  config.optimizer.optimizer = OptimizerKind::sgd;
  config.optimizer.sgd_momentum = 0;
  config.optimizer.weight_decay = 0;
  const std::string name = "vision_model.position_embeddings.weight";
  const auto step = [&](size_t at, double by, std::vector<double>* gradient = nullptr) {
    const std::vector<Batch> batches = unpacked(config);
    config.train.micro_batch_size = 1;
    config.train.global_batch_size = kRows;
    RankContext ctx;
    const ParallelContext alone;
    RankTrainer trainer(ctx, config, alone, DType::F64);
    Parameter* table = nullptr;
    for (Parameter* parameter : trainer.parameters())
      if (parameter->name == name) table = parameter;
    trainer.set_weights(ctx, [&] { table->value.data<double>()[at] += by; });
    const std::vector<double> before = ctx.to_vector<double>(table->value);
    const double loss = trainer.step(ctx, batches, Rates(1)).loss;
    if (gradient) {
      *gradient = ctx.to_vector<double>(table->value);
      for (size_t i = 0; i < before.size(); ++i) (*gradient)[i] = before[i] - (*gradient)[i];
    }
    return loss;
  };
  std::vector<double> gradient;
  step(0, 0, &gradient);
  constexpr double kStep = 1e-5;
  for (size_t at : {size_t{0}, gradient.size() / 3, gradient.size() - 1}) {
    EXPECT_NE(gradient[at], 0) << at;
    EXPECT_NEAR((step(at, kStep) - step(at, -kStep)) / (2 * kStep), gradient[at], 1e-7) << at;
  }
}

}  // namespace
}  // namespace megatron
