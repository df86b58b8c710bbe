#include <gtest/gtest.h>

#include <cmath>

#include "megatron/base/error.h"
#include "megatron/comm/run_ranks.h"
#include "megatron/datasets/images/image_rows.h"
#include "megatron/datasets/images/tiles.h"
#include "megatron/models/decoder_shape.h"
#include "megatron/models/parallel_setup.h"
#include "megatron/models/patch_order.h"
#include "megatron/tokenizers/make_tokenizer.h"
#include "megatron/training/plan/blank_batches.h"
#include "megatron/training/setup/tokenizer_setup.h"
#include "megatron/training/step/rank_trainer.h"
#include "support/golden.h"
#include "support/temp_dir.h"

// What the flags of Megatron-LM's multimodal scripts change: tiles, tags, conversations, weights of answers,
// and the layers between a tower of CLIP's kind and the decoder.
namespace megatron {
namespace {

using Grid = std::array<int64_t, 2>;

TEST(Tiles, TheNearestRatioIsChosen) {
  const TileOptions six{.size = 28, .most = 6};
  EXPECT_EQ(tile_grid(100, 100, six),
            (Grid{2, 2}));                          // 1 x 1 is as near, but the image has the pixels of four
  EXPECT_EQ(tile_grid(28, 28, six), (Grid{1, 1}));  // and here it has not
  EXPECT_EQ(tile_grid(200, 100, six), (Grid{2, 1}));
  EXPECT_EQ(tile_grid(100, 310, six), (Grid{1, 3}));
  EXPECT_EQ(tile_grid(1000, 10, six), (Grid{6, 1}));
  EXPECT_EQ(tile_grid(1000, 10, {.size = 28, .most = 1}), (Grid{1, 1}));
}

TEST(Tiles, TheAreaWeighs) {
  // 3 x 1 has the ratio alone; 6 x 2 covers more of a large image, and 12 tiles are allowed.
  EXPECT_EQ(tile_grid(600, 200, {.size = 28, .most = 12, .weighs_area = true}), (Grid{6, 2}));
  EXPECT_EQ(tile_grid(90, 30, {.size = 28, .most = 12, .weighs_area = true}), (Grid{3, 1}));
}

TEST(Tiles, AreCutInRowsWithTheThumbnailLast) {
  Image image{.width = 4, .height = 2, .rgb = {}};
  for (uint8_t i = 0; i < 8; ++i) image.rgb.insert(image.rgb.end(), {i, i, i});
  const TileOptions options{.size = 2, .most = 2, .thumbnail = true};
  const std::vector<Image> tiles = tiles_of(image, options);
  ASSERT_EQ(tiles.size(), 3u);
  const auto grey = [](const Image& tile) {
    std::vector<int> values;
    for (size_t i = 0; i < tile.rgb.size(); i += 3) values.push_back(tile.rgb[i]);
    return values;
  };
  EXPECT_EQ(grey(tiles[0]), (std::vector<int>{0, 1, 4, 5}));
  EXPECT_EQ(grey(tiles[1]), (std::vector<int>{2, 3, 6, 7}));
  EXPECT_EQ(tiles[2].width, 2);
  const Image square{.width = 2, .height = 2, .rgb = std::vector<uint8_t>(12)};
  EXPECT_EQ(tiles_of(square, options).size(), 1u) << "one tile needs no thumbnail";
}

VisionConfig clip_tower() {
  VisionConfig vision;
  vision.vision_tower = VisionTowerKind::clip;
  vision.vision_image_size = vision.vision_image_width = 28;
  vision.vision_patch_size = 14;
  vision.vision_class_token = false;
  vision.image_token_id = -200;
  return vision;
}

Tokenizer bytes() { return make_tokenizer("ByteLevelTokenizer", "", {.vocab_size = 300}); }

ImageTextEncoder encoder(const VisionConfig& vision, int64_t max_length = 0) {
  SftEncoderOptions options;
  options.max_length = max_length;
  options.special_tokens = Json::Object{{"bos_token", "<s>"}, {"eos_token", "</s>"}};
  return {bytes(), options, vision, ImageProcessor::open(vision, "")};
}

// Text as it is, # for a token of an image, and what is learned in brackets.
std::string shown(const ImageSample& sample) {
  std::string text;
  bool inside = false;
  for (size_t i = 0; i < sample.tokens.ids.size(); ++i) {
    const bool learned = sample.tokens.learned[i] != 0;
    if (learned != inside) text += learned ? "[" : "]";
    inside = learned;
    const int64_t id = sample.tokens.ids[i];
    const auto token = static_cast<TokenId>(id);
    text += id == -200 ? "#" : bytes().decode(std::span(&token, 1));
  }
  return inside ? text + "]" : text;
}

Image blank(int64_t width, int64_t height) {
  return {.width = width,
          .height = height,
          .rgb = std::vector<uint8_t>(static_cast<size_t>(3 * width * height), 90)};
}

Json chat(const char* question) {
  return Json::parse(R"({"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": ")" +
                         std::string(question) + R"("}, {"role": "assistant", "content": "ok"}]})",
                     "test");
}

std::string text_of(VisionConfig vision, const Json& row, const Image& image) {
  return shown(encoder(vision)(row, {&image, 1}, "test"));
}

TEST(ImageTexts, AreWrittenAsTheFormatSays) {
  const Image image = blank(28, 28);
  const auto written = [&](const char* format, bool forced = false) {
    VisionConfig vision = clip_tower();
    vision.tokenizer_prompt_format = format;
    vision.force_system_message = forced;
    return text_of(vision, chat("<image>hm"), image);
  };
  EXPECT_EQ(written("mistral"), "<s>[INST] ####hm[/INST][ ok</s>]");
  EXPECT_EQ(written("qwen2p5"),
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\n####hm<|im_end|>\n<|im_start|>assistant\n"
            "[ok<|im_end|>\n]");
  EXPECT_EQ(
      written("qwen2p0", true),
      "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
      "<|im_start|>user\n####hm<|im_end|>\n<|im_start|>assistant\n[ok<|im_end|>\n]");
  EXPECT_EQ(written("nvlm-yi-34b"),
            "<s><|im_start|>system\nS<|im_end|>\n<|im_start|>user\n####hm<|im_end|>\n<|im_start|>assistant\n"
            "[ok<|im_end|>\n]");
  EXPECT_EQ(
      written("llama3p1"),
      "<s><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|><|start_header_id|>user<|end_header_id|>"
      "\n\n####hm<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n[ok<|eot_id|>]");
  EXPECT_EQ(
      written("nemotron5"),
      "<s><SPECIAL_14>system\nS<SPECIAL_15>\n<SPECIAL_14>user\n####hm<SPECIAL_15>\n<SPECIAL_14>assistant\n"
      "[ok<SPECIAL_15>\n]");
  EXPECT_EQ(written("nemotron5-aligned"),
            "<s>System\nS\n[PREFIX]User\n####hm\n[PREFIX]Assistant\n[ok\n[PREFIX]]");
}

TEST(ImageTexts, HaveTagsAroundImagesAndBeforeTiles) {
  VisionConfig vision = clip_tower();
  vision.tokenizer_prompt_format = "mistral";
  vision.image_tag_type = "internvl";
  const Json row = chat("hm");  // does not say where its image belongs
  EXPECT_EQ(text_of(vision, row, blank(28, 28)), "<s>[INST] <img>####</img>\nhm[/INST][ ok</s>]");
  vision.image_tag_type = "nvlm";
  vision.use_tiling = vision.use_thumbnail = true;
  vision.max_num_tiles = 6;
  EXPECT_EQ(text_of(vision, row, blank(200, 100)),
            "<s>[INST] <Image>############</Image>\nhm[/INST][ ok</s>]");
  vision.use_tile_tags = true;
  EXPECT_EQ(
      text_of(vision, row, blank(200, 100)),
      "<s>[INST] <Image><tile_1>####<tile_2>####<tile_global_thumbnail>####</Image>\nhm[/INST][ ok</s>]");
  vision.max_num_tiles = 12;
  EXPECT_EQ(tile_tags(vision)[0], "<tile_01>");
  EXPECT_EQ(tile_tags(vision).back(), "<tile_global_thumbnail0>");
  vision.tokenizer_prompt_format = "nvlm-yi-34b";
  EXPECT_EQ(tile_tags(vision).back(), "<tile_global0>");
  vision.max_num_tiles = 6;
  EXPECT_EQ(tile_tags(vision).back(), "<tile_global>");
  vision.tokenizer_prompt_format = "nemotron5";
  EXPECT_EQ(tile_tags(vision)[0], "<tile_01>");
  EXPECT_EQ(tile_tags(vision).back(), "<tile_global_thumbnail>");
  EXPECT_FALSE(ImageMarks(vision, bytes()).tags.empty());
  vision.vision_tower = VisionTowerKind::siglip;  // has no tiles
  EXPECT_TRUE(ImageMarks(vision, bytes()).tags.empty());
}

TEST(ImageTexts, TilesGiveWayToTheText) {
  VisionConfig vision = clip_tower();
  vision.tokenizer_prompt_format = "mistral";
  vision.use_tiling = vision.use_thumbnail = true;
  vision.max_num_tiles = 6;
  const Image image = blank(600, 100);
  const auto tiles = [&](int64_t length) {
    const ImageSample sample = encoder(vision, length + 1)(chat("<image>hm"), {&image, 1}, "test");
    EXPECT_EQ(std::count(sample.tokens.ids.begin(), sample.tokens.ids.end(), -200),
              4 * std::ssize(sample.images.grids));
    return sample.images.grids.size();
  };
  // 26 bytes of text beside the image, five tokens that are kept free for it.
  EXPECT_EQ(tiles(200), 7u);
  EXPECT_EQ(tiles(26 + 28 + 5), 7u);
  EXPECT_EQ(tiles(26 + 28 + 4), 5u);
  EXPECT_EQ(tiles(26 + 20 + 4), 3u);
  EXPECT_EQ(tiles(26 + 12 + 4), 1u);
}

TEST(ImageTexts, CaptionsAnswerQuestions) {
  testing::TempDir folder;
  testing::write_text(folder / "prompts.json", R"({"CaptioningPretraining": {"raw": ["What?"]}})");
  testing::write_text(folder / "none.json", "{}");
  VisionConfig vision = clip_tower();
  const Json caption = Json::Object{{"prompt", "<image>"}, {"completion", "a cat"}};
  vision.tokenizer_prompt_format = "mistral";
  EXPECT_EQ(text_of(vision, caption, blank(28, 28)), "<s>[INST] ####\n[/INST][ a cat</s>]");
  vision.prompt_path = folder / "prompts.json";
  EXPECT_EQ(text_of(vision, caption, blank(28, 28)), "<s>[INST] ####\nWhat?\n[/INST][ a cat</s>]");
  testing::write_text(folder / "number.json", R"({"CaptioningPretraining": {"raw": ["What?", 7]}})");
  for (const char* name : {"none.json", "number.json"}) {
    vision.prompt_path = folder / name;
    EXPECT_THROW(encoder(vision), ConfigError) << name;
  }
}

TEST(ImageTexts, AnswersWeighByTheirRoots) {
  const std::vector<int64_t> labels = {-100, 3, 4, 5, 6, -100, -100, 7};
  const std::vector<float> weights = answer_weights(labels);
  EXPECT_EQ(weights, (std::vector<float>{0, 0.5F, 0.5F, 0.5F, 0.5F, 0, 0, 1}));
}

TEST(ExtraTokens, StandBehindTheVocabulary) {
  const std::string model = testing::golden_path("vision", "llava/model/config.json");
  const std::string folder = model.substr(0, model.rfind('/'));
  const Tokenizer plain = make_tokenizer("HuggingFaceTokenizer", folder),
                  more =
                      make_tokenizer("HuggingFaceTokenizer", folder, {.special_tokens = {"<img>", "</img>"}});
  EXPECT_EQ(more.vocab_size(), plain.vocab_size() + 2);
  EXPECT_EQ(
      read_vocabulary_facts("HuggingFaceTokenizer", folder, {.special_tokens = {"<img>", "</img>"}}).size,
      more.vocab_size());
  std::vector<TokenId> wanted = plain.encode("hello ");
  wanted.push_back(static_cast<TokenId>(plain.vocab_size()));
  for (TokenId id : plain.encode("one")) wanted.push_back(id);
  wanted.push_back(static_cast<TokenId>(plain.vocab_size()) + 1);
  EXPECT_EQ(more.encode("hello <img>one</img>"), wanted);
  EXPECT_EQ(more.encode_with_offsets("hello <img>one</img>").ids, wanted);
  EXPECT_EQ(more.encode_with_offsets("hello <img>one</img>").offsets.back(), (CharRange{14, 20}));
  EXPECT_EQ(more.encode("hello", true), plain.encode("hello", true));
  EXPECT_EQ(*more.id_of("<img>"), static_cast<TokenId>(plain.vocab_size()));
  EXPECT_EQ(more.piece_of(static_cast<TokenId>(plain.vocab_size())), "<img>");
}

TEST(ExtraTokens, GiveIdsInReserveAName) {
  const std::string model = testing::golden_path("vision", "llava/model/config.json");
  const std::string folder = model.substr(0, model.rfind('/'));
  const Tokenizer plain = make_tokenizer("HuggingFaceTokenizer", folder);
  const auto last = static_cast<TokenId>(plain.vocab_size() - 1);
  const std::vector<std::string> names = {fmt::format("<audio>,{}", last), "<a,b>,5"};
  const Tokenizer named =
      make_tokenizer("HuggingFaceTokenizer", folder, {.special_tokens = {"<img>"}, .assigned_tokens = names});
  EXPECT_EQ(named.vocab_size(), plain.vocab_size() + 1) << "an id of the vocabulary, and one behind it";
  std::vector<TokenId> wanted = plain.encode("hello ");
  wanted.insert(wanted.end(), {last, 5, last + 1});
  EXPECT_EQ(named.encode("hello <audio><a,b><img>"), wanted);
  EXPECT_EQ(named.encode_with_offsets("hello <audio><a,b><img>").offsets.back(), (CharRange{18, 23}));
  EXPECT_EQ(named.decode(wanted), plain.decode(plain.encode("hello ")) + "<audio><a,b><img>");
  EXPECT_EQ(*named.id_of("<audio>"), last);
  EXPECT_EQ(named.piece_of(5), "<a,b>");
  EXPECT_EQ(*named.id_of(plain.piece_of(5)), 5) << "its own name is known still";
  EXPECT_TRUE(named.is_special(last));
  for (const std::string& wrong : {fmt::format("<audio>,{}", last + 1), std::string("<audio>"),
                                   std::string("<audio>,-1"), std::string("<audio>,1x"), std::string(",4")})
    EXPECT_THROW(make_tokenizer("HuggingFaceTokenizer", folder, {.assigned_tokens = {wrong}}), Error)
        << wrong;
  EXPECT_THROW(make_tokenizer("ByteLevelTokenizer", "", {.assigned_tokens = names}), ConfigError);
}

// What `preprocess` writes, a run reads.
TEST(ExtraTokens, HaveOneIdEverywhere) {
  const std::string model = testing::golden_path("vision", "gemma3/model/config.json");
  TokenizerConfig config;
  config.tokenizer_type = TokenizerKind::huggingface;
  config.tokenizer_model = model.substr(0, model.rfind('/'));
  config.special_tokens = {"<image>", "<img>"};
  const Tokenizer alone = make_tokenizer("HuggingFaceTokenizer", config.tokenizer_model,
                                         {.special_tokens = config.special_tokens}),
                  of_a_run = open_tokenizer(config);
  ASSERT_TRUE(of_a_run.id_of("<img>"));
  EXPECT_EQ(of_a_run.id_of("<img>"), alone.id_of("<img>"));
  EXPECT_EQ(of_a_run.id_of("<image>"), alone.id_of("<image>"));
  EXPECT_EQ(vocabulary_size(config), alone.vocab_size());
}

struct Layout {
  const char* name;
  int tp = 1, pp = 1;
  bool sp = false, recompute = false;

  int ranks() const { return tp * pp; }
};

Config projected(const Layout& layout) {
  Config config;
  config.model =
      llama_style({.layers = 2, .hidden = 32, .heads = 4, .groups = 2, .ffn = 64, .vocab = 64, .length = 24});
  static_cast<VisionConfig&>(config.model) = clip_tower();
  VisionConfig& vision = config.model;
  vision.vision_image_size = vision.vision_image_width = 56;
  vision.vision_num_layers = 2;
  vision.vision_hidden_size = 16;
  vision.vision_num_attention_heads = 2;
  vision.vision_ffn_hidden_size = 32;
  vision.vision_projector_size = 24;
  vision.vision_output_size = 32;
  vision.vision_pixel_shuffle = true;
  vision.vision_projector_norm = ProjectorNorm::layer_norm;
  vision.vision_projector_bias = false;
  vision.vision_projector_activation = Activation::squared_relu;
  vision.vision_tokens_per_image = 4;
  vision.vision_init_method_std = 0.3;
  vision.recompute_vision = layout.recompute;
  if (layout.recompute) {
    config.execution.recompute_granularity = RecomputeGranularity::full;
    config.execution.recompute_method = RecomputeMethod::uniform;
    config.execution.recompute_num_layers = 1;
  }
  config.dataset.seq_length = 24;
  config.parallel.tensor_model_parallel_size = layout.tp;
  config.parallel.pipeline_model_parallel_size = layout.pp;
  config.parallel.sequence_parallel = layout.sp;
  config.train.micro_batch_size = 2;
  config.train.global_batch_size = 4;
  config.optimizer.clip_grad = 0;
  return config;
}

// An image in every row, each with pixels of its own.
std::vector<Batch> batches_of(const Config& config) {
  std::vector<Batch> batches = blank_batches(config, 2);
  for (size_t b = 0; b < batches.size(); ++b) {
    Batch& batch = batches[b];
    for (size_t i = 0; i < batch.ids.size(); ++i) {
      batch.labels[i] = static_cast<int64_t>((i * i + b) % 60);
      if (!config.model.is_image_token(batch.ids[i])) batch.ids[i] = batch.labels[i];
    }
    Tensor pixels = batch.extra.at("pixels");
    auto own = std::make_shared<std::vector<float>>();
    for (int64_t i = 0; i < pixels.numel(); ++i)
      own->push_back(static_cast<float>(std::sin(0.37 * static_cast<double>(i) + static_cast<double>(b))));
    batch.extra["pixels"] = Tensor::wrap(own->data(), pixels.shape(), DType::F32, kCpu, own);
  }
  return batches;
}

struct Step {
  double loss = 0, norm = 0;
};

Step run(const Layout& layout) {
  Step result;
  const Config config = projected(layout);
  run_ranks(layout.ranks(), [&](int rank, const ProcessGroup& world) {
    RankContext ctx(kCpu, 1, rank);
    const auto parallel = ParallelContext::from_sizes(world, parallel_sizes(config, layout.ranks()));
    RankTrainer trainer(ctx, config, parallel, DType::F64);
    const StepReport report = trainer.step(ctx, batches_of(config), Rates(1e-2));
    if (rank == 0) result = {report.loss, report.grad_norm};
  });
  return result;
}

class CountFlops final : public Tracer {
 public:
  void op(const char*, Phase, const Cost& cost) override { flops += cost.flops; }
  double flops = 0;
};

TEST(RecomputedTowers, AreThoseThatLearn) {
  const auto flops = [](bool recompute, bool frozen) {
    Config config = projected({.name = "one", .recompute = true});
    config.model.recompute_vision = recompute;
    config.model.freeze_vision_model = frozen;
    RankContext ctx;
    const ParallelContext alone;
    RankTrainer trainer(ctx, config, alone, DType::F32);
    CountFlops counted;
    ctx.tracer = &counted;
    trainer.step(ctx, batches_of(config), Rates(1e-2));
    ctx.tracer = nullptr;
    return counted.flops;
  };
  EXPECT_GT(flops(true, false), flops(false, false));
  EXPECT_EQ(flops(true, true), flops(false, true));
}

TEST(BlankBatches, HaveAsManyTilesAsFit) {
  Config config = projected({"one"});
  const auto images = [&] { return blank_batches(config, 1)[0].extra.at("image_grids").size(0); };
  EXPECT_EQ(images(), 2) << "one in each of two rows";
  config.model.use_tiling = true;
  config.model.max_num_tiles = 6;
  EXPECT_EQ(images(), 2 * 5) << "of 4 tokens each, in rows of 24";
  const Batch batch = blank_batches(config, 1)[0];
  EXPECT_EQ(std::count(batch.ids.begin(), batch.ids.end(), config.model.image_token_id), 2 * 5 * 4);
  EXPECT_EQ(batch.extra.at("pixels").size(0), 2 * 5 * 16);
  RankContext ctx;
  const ParallelContext alone;
  RankTrainer trainer(ctx, config, alone, DType::F32);
  EXPECT_GT(trainer.step(ctx, blank_batches(config, 2), Rates(1e-2)).loss, 0);
}

TEST(ShuffledPatches, SquaresFollowEachOther) {
  EXPECT_EQ(shuffle_order({{1, 4, 4}, {1, 4, 4}}),
            (std::vector<int64_t>{0,  1,  4,  5,  2,  3,  6,  7,  8,  9,  12, 13, 10, 11, 14, 15,
                                  16, 17, 20, 21, 18, 19, 22, 23, 24, 25, 28, 29, 26, 27, 30, 31}));
}

// One step of plain gradient descent: a weight moves by its gradient.
std::map<std::string, std::vector<double>> moved_by(double& loss, const std::string& name = "", size_t at = 0,
                                                    double by = 0) {
  Config config = projected({"one"});
  config.optimizer.optimizer = OptimizerKind::sgd;
  config.optimizer.sgd_momentum = 0;
  config.optimizer.weight_decay = 0;
  RankContext ctx;
  const ParallelContext alone;
  RankTrainer trainer(ctx, config, alone, DType::F64);
  std::map<std::string, std::vector<double>> before;
  trainer.set_weights(ctx, [&] {
    for (Parameter* parameter : trainer.parameters())
      if (parameter->name == name) parameter->value.data<double>()[at] += by;
  });
  for (Parameter* parameter : trainer.parameters())
    before[parameter->name] = ctx.to_vector<double>(parameter->value);
  loss = trainer.step(ctx, batches_of(config), Rates(1)).loss;
  for (Parameter* parameter : trainer.parameters()) {
    const std::vector<double> after = ctx.to_vector<double>(parameter->value);
    for (size_t i = 0; i < after.size(); ++i) before[parameter->name][i] -= after[i];
  }
  return before;
}

TEST(ShuffledPatches, GradientsAreThoseOfDifferences) {
  double loss = 0;
  const auto gradients = moved_by(loss);
  constexpr double kStep = 1e-5;
  for (const char* name :
       {"vision_model.patch_embed.proj.weight", "vision_model.position_embeddings.weight",
        "vision_projection.encoder.input_layernorm.weight", "vision_projection.encoder.linear_fc1.weight",
        "vision_projection.encoder.linear_fc2.weight"}) {
    ASSERT_TRUE(gradients.contains(name)) << name;
    const std::vector<double>& gradient = gradients.at(name);
    double largest = 0;
    for (double value : gradient) largest = std::max(largest, std::abs(value));
    EXPECT_GT(largest, 0) << name;
    for (size_t at : {size_t{0}, gradient.size() / 3, gradient.size() - 1}) {
      double above = 0, below = 0;
      moved_by(above, name, at, kStep);
      moved_by(below, name, at, -kStep);
      EXPECT_NEAR((above - below) / (2 * kStep), gradient[at], 1e-7 * std::max(1.0, largest))
          << name << " " << at;
    }
  }
  EXPECT_FALSE(gradients.contains("vision_projection.encoder.linear_fc1.bias"));
}

TEST(ShuffledPatches, EveryLayoutMakesTheSameStep) {
  const Step one = run({"one"});
  EXPECT_GT(one.norm, 0);
  for (const Layout& layout : {Layout{.name = "tp2", .tp = 2}, Layout{.name = "tp2 sp", .tp = 2, .sp = true},
                               Layout{.name = "pp2", .pp = 2}, Layout{.name = "recompute", .recompute = true},
                               Layout{.name = "tp2 pp2 recompute", .tp = 2, .pp = 2, .recompute = true}}) {
    SCOPED_TRACE(layout.name);
    const Step step = run(layout);
    EXPECT_NEAR(step.loss, one.loss, 1e-9);
    EXPECT_NEAR(step.norm, one.norm, 1e-8 * one.norm);
  }
}

}  // namespace
}  // namespace megatron
