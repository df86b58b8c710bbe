#include "megatron/inference/generate.h"

#include <gtest/gtest.h>

#include <set>

#include "megatron/comm/run_ranks.h"
#include "megatron/models/parallel_setup.h"
#include "unit/inference/small_models.h"

namespace megatron {
namespace {

struct Layout {
  const char* name;
  int tp = 1, pp = 1, cp = 1, vpp = 0;
  PipelineSchedule schedule = PipelineSchedule::automatic;
  int ranks() const { return tp * pp * cp; }
};

Config small_model(const Layout& layout) {
  Config config = testing::small_config(testing::kDense, layout.tp, layout.pp);
  config.model.seq_length = config.model.max_position_embeddings = 24;
  config.parallel.context_parallel_size = layout.cp;
  config.parallel.virtual_pipeline_model_parallel_size = layout.vpp;
  config.parallel.pipeline_schedule = layout.schedule;
  return config;
}

// Layers with states among others.
Config small_hybrid(const Layout& layout) {
  Config config = small_model(layout);
  testing::kHybrid.change(config.model);
  return config;
}

std::vector<int64_t> text_of(const Layout& layout, const GenerateOptions& options,
                             Config (*model_of)(const Layout&) = small_model) {
  const Config config = model_of(layout);
  std::vector<std::vector<int64_t>> texts(static_cast<size_t>(layout.ranks()));
  run_ranks(layout.ranks(), [&](int rank, const ProcessGroup& world) {
    RankContext ctx(kCpu, 1, rank);
    const auto parallel = ParallelContext::from_sizes(world, parallel_sizes(config, layout.ranks()));
    Model model(config, parallel, DType::F64);
    for (Parameter* parameter : model.parameters()) {
      parameter->allocate(ctx, DType::F64);
      parameter->initialize(ctx, 7);
    }
    texts[static_cast<size_t>(rank)] =
        generate(ctx, world, model, std::vector<int64_t>{3, 1, 4, 1, 5}, options);
  });
  for (const auto& text : texts) EXPECT_EQ(text, texts[0]) << layout.name;
  return texts[0];
}

TEST(Generate, EveryLayoutWritesTheSame) {
  const GenerateOptions greedy{.max_new_tokens = 16}, again{.max_new_tokens = 16, .use_cache = false};
  const GenerateOptions drawn{.max_new_tokens = 16, .sampling = {.temperature = 1, .top_k = 8}};
  const auto one = text_of({"one"}, greedy), one_drawn = text_of({"one"}, drawn);
  ASSERT_EQ(one.size(), 16);
  EXPECT_NE(one, one_drawn);
  EXPECT_EQ(text_of({"one"}, again), one);
  for (const Layout& layout : {Layout{"tp2", 2},
                               {"pp2", 1, 2},
                               {"pp2 vpp2", 1, 2, 1, 2},
                               {"pp2 in a V", 1, 2, 1, 2, PipelineSchedule::zb_v},
                               {"tp2 pp2", 2, 2},
                               {"cp2", 1, 1, 2},
                               {"tp4 with shared keys", 4}}) {
    SCOPED_TRACE(layout.name);
    EXPECT_EQ(text_of(layout, greedy), one);
    EXPECT_EQ(text_of(layout, drawn), one_drawn);
  }
}

TEST(Generate, StatesAreCarriedOn) {
  const GenerateOptions cached{.max_new_tokens = 40}, again{.max_new_tokens = 40, .use_cache = false};
  const auto text = text_of({"one"}, again, small_hybrid);
  EXPECT_GT(std::set<int64_t>(text.begin(), text.end()).size(), 3U) << "a text that says something";
  for (const Layout& layout :
       {Layout{"one"}, Layout{"tp2", 2}, Layout{"pp2", 1, 2}, Layout{"cp2", 1, 1, 2}}) {
    SCOPED_TRACE(layout.name);
    EXPECT_EQ(text_of(layout, cached, small_hybrid), text);
  }
}

TEST(Generate, EndsAtAnEndToken) {
  const auto text = text_of({"one"}, {.max_new_tokens = 16});
  GenerateOptions options{.max_new_tokens = 16, .end_tokens = {text[3]}};
  const auto first = std::find(text.begin(), text.end(), text[3]);
  EXPECT_EQ(text_of({"one"}, options), std::vector<int64_t>(text.begin(), first + 1));
}

// Past the end of its context a model goes on from the later half of what there is.
TEST(Generate, GoesOnWhenTheContextIsFull) {
  const auto text = text_of({"one"}, {.max_new_tokens = 60});
  EXPECT_EQ(text.size(), 60);
  EXPECT_EQ(text_of({"one"}, {.max_new_tokens = 60, .use_cache = false}), text);
}

Config small_encoder(const Layout& layout) {
  Config config = small_model(layout);
  ModelConfig& model = config.model;
  model.model_type = ModelType::t5;
  model.encoder_num_layers = model.decoder_num_layers = model.num_layers = 2;
  model.position_embedding_type = PositionEmbedding::learned_absolute;
  return config;
}

TEST(Generate, AnEncoderAndItsDecoderHaveStages) {
  const GenerateOptions options{.max_new_tokens = 12, .sampling = {.temperature = 1, .top_k = 8}};
  const auto text = text_of({"one"}, options, small_encoder);
  EXPECT_GT(std::set<int64_t>(text.begin(), text.end()).size(), 2U) << "a text that says something";
  for (const Layout& layout : {Layout{"tp2", 2}, Layout{"pp2", 1, 2}, Layout{"pp4", 1, 4}}) {
    SCOPED_TRACE(layout.name);
    EXPECT_EQ(text_of(layout, options, small_encoder), text);
  }
}

// What the encoder makes of the prompt is kept from token to token.
TEST(Generate, AnEncoderReadsThePromptOnce) {
  Config config = small_encoder({"one"});
  config.model.position_embedding_type = PositionEmbedding::relative;
  run_ranks(1, [&](int, const ProcessGroup& world) {
    RankContext ctx(kCpu, 1);
    Model rank(config, ParallelContext::from_sizes(world, parallel_sizes(config, 1)), DType::F64);
    for (Parameter* parameter : rank.parameters()) {
      parameter->allocate(ctx, DType::F64);
      parameter->initialize(ctx, 7);
    }
    const std::vector<int64_t> prompt{3, 1, 4, 1, 5}, first{0}, second{0, 9};
    std::vector<int64_t> seen;
    Tensor encoded;
    auto logits = [&](const std::vector<int64_t>& text, Tensor* kept) {
      seen.clear();
      return ctx.to_vector<double>(
          rank.logits(ctx, {.tokens = prompt,
                            .last_only = true,
                            .on_layer = [&](int64_t layer, const Tensor&) { seen.push_back(layer); },
                            .decoder_tokens = text,
                            .encoded = kept}));
    };
    logits(first, &encoded);
    EXPECT_EQ(seen, (std::vector<int64_t>{0, 1, 2, 3}));
    const std::vector<double> kept = logits(second, &encoded);
    EXPECT_EQ(seen, (std::vector<int64_t>{2, 3}));
    EXPECT_EQ(kept, logits(second, nullptr));
    EXPECT_EQ(generate(ctx, world, rank, prompt, {.max_new_tokens = 8}).size(), 8U);
  });
}

}  // namespace
}  // namespace megatron
