#include <gtest/gtest.h>

#include "megatron/comm/run_ranks.h"
#include "megatron/config/resolve/layer_blocks.h"
#include "megatron/config/resolve/resolve.h"
#include "megatron/models/t5.h"
#include "megatron/models/whole_model.h"
#include "megatron/ops/reduce.h"
#include "megatron/transformer/embedding.h"
#include "megatron/transformer/initializers.h"
#include "megatron/transformer/layer_pattern.h"

namespace megatron {
namespace {

TEST(LayerPattern, SymbolsOfAHybridModel) {
  ModelConfig config;
  config.is_hybrid_model = true;
  config.hybrid_layer_pattern = "M-|*EG";
  config.num_layers = 5;
  config.num_moe_experts = 2;
  const MixerKind mixers[] = {MixerKind::mamba, MixerKind::none, MixerKind::attention, MixerKind::none,
                              MixerKind::delta_net};
  const FeedForwardKind feeds[] = {FeedForwardKind::none, FeedForwardKind::mlp, FeedForwardKind::none,
                                   FeedForwardKind::experts, FeedForwardKind::none};
  for (int64_t layer = 0; layer < 5; ++layer) {
    EXPECT_EQ(mixer_kind(config, layer), mixers[layer]) << layer;
    EXPECT_EQ(feed_forward_kind(config, layer), feeds[layer]) << layer;
  }
  EXPECT_TRUE(carries_states(config));
  config.hybrid_layer_pattern = "*-*-E";
  EXPECT_FALSE(carries_states(config));
  EXPECT_THROW(mixer_kind(config, 5), Error);
}

TEST(LayerPattern, LinearLayersByNumberOrList) {
  ModelConfig config;
  config.num_layers = 4;
  EXPECT_EQ(mixer_kind(config, 0), MixerKind::attention);
  config.experimental_attention_variant = AttentionVariant::gated_delta_net;
  EXPECT_EQ(mixer_kind(config, 3), MixerKind::delta_net);
  config.linear_attention_freq = Json(4);
  EXPECT_EQ(mixer_kind(config, 2), MixerKind::delta_net);
  EXPECT_EQ(mixer_kind(config, 3), MixerKind::attention);
  config.linear_attention_freq = Json::parse("[0, 1, 0, 1]");
  EXPECT_EQ(mixer_kind(config, 2), MixerKind::attention);
  EXPECT_EQ(mixer_kind(config, 3), MixerKind::delta_net);
}

TEST(LayerPattern, LayersThatDiffer) {
  ModelConfig model;
  model.num_layers = 3;
  model.num_attention_heads = model.num_query_groups = 8;
  model.ffn_hidden_size = 64;
  EXPECT_EQ(layer_block(model, 7).ffn_hidden_size, 64);  // all alike
  model.heterogeneous_layers_config_encoded_json =
      R"({"block_configs": [{"attention": {"n_heads_in_group": 4}},
      {"ffn": {"ffn_hidden_size": 32}, "attention": {"no_op": true}}, {"ffn": {"no_op": true}}]})";
  EXPECT_THROW(of_layer(model, 0), Error);  // nobody read the text
  model.layer_blocks = read_layer_blocks(model);
  EXPECT_EQ(of_layer(model, 0).num_query_groups, 2);
  EXPECT_TRUE(of_layer(model, 0).group_query_attention);
  EXPECT_EQ(of_layer(model, 0).ffn_hidden_size, 64);
  EXPECT_EQ(of_layer(model, 1).ffn_hidden_size, 32);
  EXPECT_EQ(of_layer(model, 2).num_query_groups, 8);
  const MixerKind mixers[] = {MixerKind::attention, MixerKind::none, MixerKind::attention};
  const FeedForwardKind feeds[] = {FeedForwardKind::mlp, FeedForwardKind::mlp, FeedForwardKind::none};
  for (int64_t layer = 0; layer < 3; ++layer) {
    EXPECT_EQ(mixer_kind(model, layer), mixers[layer]) << layer;
    EXPECT_EQ(feed_forward_kind(model, layer), feeds[layer]) << layer;
  }
  EXPECT_THROW(of_layer(model, 3), Error);
  EXPECT_THROW(of_layer(model, -1), Error);
}

// What is resolved was read: a text is parsed once for all layers, and a spoiled one refused.
TEST(LayerPattern, DescriptionsAreReadWithTheSettings) {
  Sources sources;
  sources.overrides = {"model.num_layers=2", "model.num_attention_heads=4", "model.hidden_size=16",
                       R"(model.heterogeneous_layers_config_encoded_json='{"block_configs": [{}, {}]}')"};
  const Config config = resolve(sources, {.purpose = Purpose::inspect}).config;
  ASSERT_EQ(config.model.layer_blocks.size(), 2u);
  EXPECT_EQ(config.model.layer_blocks[1].ffn_hidden_size, config.model.ffn_hidden_size);
  sources.overrides.back() = "model.heterogeneous_layers_config_encoded_json='{'";
  EXPECT_THROW(resolve(sources, {.purpose = Purpose::inspect}), Refused);
}

// The rows that a model has are those that the configuration shows.
TEST(Vocabulary, PaddedAsTheSettingsSay) {
  for (const char* more : {"model.make_vocab_size_divisible_by=8", "tokenizer.pad_vocab_size=false",
                           "tokenizer.padded_vocab_size=50", "tokenizer.padded_vocab_size=64",
                           "tokenizer.padded_vocab_size=1024"})
    for (int tp : {1, 2}) {
      Sources sources;
      sources.overrides = {"model.vocab_size=50", fmt::format("model.tensor_model_parallel_size={}", tp),
                           more};
      const Config config = resolve(sources, {.purpose = Purpose::inspect}).config;
      EXPECT_EQ(padded_vocab_size(config.model, tp), config.tokenizer.padded_vocab_size) << more << " " << tp;
    }
}

TEST(RelativeBias, BucketsOfDistances) {
  // Eight buckets up to a distance of 20: both ways four each, of which two are exact.
  for (auto [distance, bucket] :
       {std::pair{0, 0}, {-1, 1}, {1, 5}, {-2, 2}, {2, 6}, {-5, 2}, {-7, 3}, {100, 7}})
    EXPECT_EQ(relative_bucket(distance, 8, 20, true), bucket) << distance;
  // One way all eight, of which four are exact; what is after the query has the first.
  for (auto [distance, bucket] : {std::pair{0, 0}, {3, 0}, {-3, 3}, {-4, 4}, {-6, 5}, {-19, 7}, {-100, 7}})
    EXPECT_EQ(relative_bucket(distance, 8, 20, false), bucket) << distance;
}

ModelConfig small_t5() {
  ModelConfig config;
  config.encoder_num_layers = config.decoder_num_layers = config.num_layers = 2;
  config.hidden_size = 16;
  config.num_attention_heads = config.num_query_groups = 4;
  config.kv_channels = 6;
  config.ffn_hidden_size = 20;
  config.vocab_size = 30;
  config.make_vocab_size_divisible_by = 4;
  config.position_embedding_type = PositionEmbedding::relative;
  config.relative_attention_num_buckets = 8;
  config.relative_attention_max_distance = 10;
  config.normalization = Normalization::rms_norm;
  config.add_bias_linear = false;
  config.attention_dropout = config.hidden_dropout = 0;
  config.output_multiplier = 0.25;
  return config;
}

// What the model makes of rows of targets, given those of the source.
Tensor hidden_of(RankContext& ctx, T5Model& model, int64_t rows, const std::vector<int64_t>& source,
                 const std::vector<int64_t>& lengths, const std::vector<int64_t>& target) {
  MicroBatch micro{.ids = ctx.from_vector(target, {std::ssize(target)})};
  micro.seq = model.sequences(ctx, {.rows = rows, .length = std::ssize(target) / rows, .documents = {}});
  micro.extra["encoder_ids"] = ctx.from_vector(source, {rows, std::ssize(source) / rows});
  if (!lengths.empty()) micro.extra["encoder_mask"] = padding_mask(ctx, lengths, std::ssize(source) / rows);
  return model.run_stage(ctx, {}, micro)[0];
}

// The loss, and the sum of squares of each gradient over the ranks that split it.
std::map<std::string, double> t5_on(int ranks, bool sequence_parallel) {
  std::map<std::string, double> result;
  run_ranks(ranks, [&](int rank, const ProcessGroup& world) {
    RankContext ctx(kCpu, 1, rank);
    ModelParallel parallel;
    parallel.tensor.group = world;
    parallel.tensor.sequence_parallel = sequence_parallel;
    T5Model model(small_t5(), parallel, DType::F64);
    for (Parameter* parameter : model.parameters()) {
      parameter->allocate(ctx, DType::F64);
      parameter->allocate_gradient(ctx);
      parameter->initialize(ctx, 1);
    }
    Tape tape(ctx);
    Tensor loss;
    {
      TapeScope scope(ctx, &tape);
      const Tensor hidden =
          hidden_of(ctx, model, 2, {1, 2, 3, 4, 5, 6, 7, 8, 9, 0}, {5, 4}, {0, 11, 12, 0, 13, 14, 3, 5});
      loss = ops::sum(
          ctx,
          model.token_losses(ctx, hidden, ctx.from_vector<int64_t>({11, 12, 13, -100, 13, 14, 15, 6}, {8})));
    }
    tape.backward(ctx, loss);
    std::map<std::string, double> own;
    for (Parameter* parameter : model.parameters()) {
      Tensor grad = parameter->accumulator.main_grad;
      if (parameter->partial_over_tp) world.all_reduce(grad).wait();
      double squares = 0;
      for (double v : ctx.to_vector<double>(grad)) squares += v * v;
      Tensor total = ctx.full({1}, DType::F64, squares);
      if (!parameter->replicated_over_tp()) world.all_reduce(total).wait();
      own[parameter->name] = ctx.item(total);
    }
    own["loss"] = ctx.item(loss);
    if (rank == 0) result = own;
  });
  return result;
}

TEST(T5, EveryTensorParallelLayoutGivesWhatOneRankGives) {
  const auto one = t5_on(1, false);
  EXPECT_GT(one.at("encoder.layers.0.self_attention.linear_qkv.weight"), 0);
  for (auto [ranks, split] : {std::pair{2, false}, {2, true}, {4, false}})
    for (const auto& [name, value] : t5_on(ranks, split))
      EXPECT_NEAR(value, one.at(name), 1e-9 * std::max(1.0, one.at(name))) << name << " on " << ranks;
}

TEST(T5, PaddingOfTheSourceIsNotSeen) {
  RankContext ctx;
  T5Model model(small_t5(), {}, DType::F64);
  for (Parameter* parameter : model.parameters()) {
    parameter->allocate(ctx, DType::F64);
    parameter->initialize(ctx, 1);
  }
  auto hidden = [&](int64_t padding, const std::vector<int64_t>& lengths) {
    return ctx.to_vector<double>(hidden_of(ctx, model, 1, {1, 2, 3, padding}, lengths, {0, 5}));
  };
  EXPECT_EQ(hidden(7, {3}), hidden(9, {3}));
  EXPECT_NE(hidden(7, {}), hidden(9, {}));
}

// Values fill ±√(6 / (rows + columns)) of the whole matrix, of which a rank may hold a part.
TEST(Initializers, XavierIsUniformByTheSizeOfTheWholeMatrix) {
  RankContext ctx;
  ModelConfig config;
  config.init_method_xavier_uniform = true;
  EXPECT_EQ(input_initializer(config).kind, Initializer::Kind::XavierUniform);
  EXPECT_EQ(output_initializer(config).kind, Initializer::Kind::XavierUniform);
  Parameter weight("weight", ShardSpec::whole({300, 100}), input_initializer(config));
  weight.allocate(ctx, DType::F64);
  weight.initialize(ctx, 1);
  const double bound = std::sqrt(6.0 / 400);
  double most = 0, squares = 0;
  const std::vector<double> values = ctx.to_vector<double>(weight.value);
  for (double value : values) {
    most = std::max(most, std::abs(value));
    squares += value * value;
  }
  EXPECT_LE(most, bound);
  EXPECT_GT(most, 0.999 * bound);
  // The variance of that distribution is bound² / 3 = 2 / (rows + columns).
  EXPECT_NEAR(squares / static_cast<double>(values.size()), 2.0 / 400, 0.03 * 2 / 400);
  Parameter vector("vector", ShardSpec::whole({8}), Initializer::xavier_uniform());
  vector.allocate(ctx, DType::F64);
  EXPECT_THROW(vector.initialize(ctx, 1), Error);
}

TEST(WholeModel, HasAnEncoderWhereTheConfigurationSaysSo) {
  EXPECT_TRUE(is_encoder_decoder(small_t5()));
  size_t cross = 0;
  whole_model(small_t5())->visit([&](Parameter& p) {
    cross += p.name.find("cross_attention") != std::string::npos;
  });
  EXPECT_EQ(cross, 6u);  // three matrices in each of two layers
}

}  // namespace
}  // namespace megatron
