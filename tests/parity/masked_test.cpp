#include "megatron/datasets/masked/masked_source.h"
#include "megatron/datasets/masked/mock_sentences.h"
#include "megatron/models/whole_model.h"
#include "parity/cases.h"
#include "parity/settings.h"

// BERT and T5 on masked text, on every kind of layout against one rank.
namespace megatron::testing {
namespace {

constexpr int64_t kSentinels = 12;

Config masked(ModelType type) {
  Config config = with_biases_and_layernorm();
  ModelConfig& model = config.model;
  model.model_type = type;
  model.vocab_size = 60;
  model.seq_length = model.max_position_embeddings = 16;
  model.share_embeddings_and_output_weights = true;
  model.attention_dropout = 0.1;
  model.hidden_dropout = 0.2;
  config.train.global_batch_size = 8;
  return config;
}

Config bert(bool binary_head) {
  Config config = masked(ModelType::bert);
  ModelConfig& model = config.model;
  model.bidirectional_attention = model.masked_lm_head = true;
  model.bert_binary_head = binary_head;
  model.num_tokentypes = binary_head ? 2 : 0;
  return config;
}

Config t5(PositionEmbedding positions) {
  Config config = masked(ModelType::t5);
  ModelConfig& model = config.model;
  model.position_embedding_type = positions;
  model.encoder_num_layers = 2;
  model.num_layers = model.decoder_num_layers = 3;
  model.encoder_seq_length = model.seq_length;
  model.decoder_seq_length = 12;
  model.output_layer_bias = true;
  return config;
}

std::shared_ptr<const BatchSource> source_of(const Config& config) {
  const ModelConfig& model = config.model;
  const bool is_t5 = model.model_type == ModelType::t5;
  MaskedDatasetConfig options;
  options.identity = {.seed = 7, .seq_length = model.seq_length};
  options.vocabulary = mock_word_pieces(model.vocab_size, is_t5 ? kSentinels : 0);
  options.masking = {.max_ngram = is_t5 ? 10 : 3, .geometric = is_t5};
  options.cache = false;
  auto store = std::make_shared<const MockSentences>(options.vocabulary);
  const auto blend = [](auto dataset) {
    using Dataset = typename decltype(dataset)::element_type;
    return std::make_shared<const BlendedDataset<std::remove_const_t<Dataset>>>(dataset);
  };
  if (is_t5) {
    auto data = blend(std::make_shared<const T5Dataset>(store, options, model.decoder_seq_length,
                                                        Split::train, std::array{0.0, 1.0}, 200));
    return t5_source(data, SampleOrder::in_turn(data->size()), model.decoder_seq_length);
  }
  auto data = blend(std::make_shared<const BertDataset>(store, options, model.bert_binary_head, Split::train,
                                                        std::array{0.0, 1.0}, 200));
  return bert_source(data, SampleOrder::in_turn(data->size()), model.seq_length, model.bert_binary_head);
}

void check_masked(const Config& config, std::span<const Layout> layouts) {
  const auto source = source_of(config);
  const std::vector<std::vector<int64_t>> steps(kSteps);
  const auto train_on = [&](const Layout& layout) {
    return train_layout(apply(config, layout), {.sizes = sizes_of(layout), .source = source}, steps);
  };
  const Trained one = train_on({.name = "one rank"});
  EXPECT_LT(one.losses.back(), one.losses.front() + 1) << "training must not diverge";
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(layout.name);
    const Trained many = train_on(layout);
    expect_equal(one, many, kTolerance);
    for (size_t i = 0; i < one.reports.size(); ++i) {
      ASSERT_EQ(one.reports[i].terms.size(), many.reports[i].terms.size());
      for (size_t t = 0; t < one.reports[i].terms.size(); ++t)
        EXPECT_NEAR(one.reports[i].terms[t].value, many.reports[i].terms[t].value, kTolerance);
    }
  }
}

void recompute_all(Config& config) {
  config.execution.recompute_granularity = RecomputeGranularity::full;
  config.execution.recompute_method = RecomputeMethod::uniform;
  config.execution.recompute_num_layers = 2;
}
void all_sharded(Config& config) { shard<3>(config, 0); }

const std::vector<Layout> kWithoutStages = {
    {.name = "tp2", .tp = 2},
    {.name = "tp4 sp", .tp = 4, .sp = true},
    {.name = "dp2", .dp = 2},
    {.name = "tp2 sp dp2, all sharded", .tp = 2, .dp = 2, .sp = true, .change = all_sharded},
    {.name = "layers made again", .change = recompute_all}};

const std::vector<Layout> kStages = {{.name = "pp2", .pp = 2},
                                     {.name = "tp2 sp pp2 vpp2", .tp = 2, .pp = 2, .vpp = 2, .sp = true},
                                     {.name = "zb-h1", .pp = 2, .change = use<PipelineSchedule::zb_h1>}};

TEST(MaskedParity, Bert) {
  check_masked(bert(false), kWithoutStages);
  check_masked(bert(false), kStages);
}
TEST(MaskedParity, BertWithBinaryHead) {
  check_masked(bert(true), kWithoutStages);
  check_masked(bert(true), kStages);
}
TEST(MaskedParity, T5LearnedPositions) {
  check_masked(t5(PositionEmbedding::learned_absolute), kWithoutStages);
}
TEST(MaskedParity, T5RelativePositions) { check_masked(t5(PositionEmbedding::relative), kWithoutStages); }
TEST(MaskedParity, T5Rope) {
  Config config = t5(PositionEmbedding::rope);
  config.model.calculate_per_token_loss = true;
  config.model.share_embeddings_and_output_weights = config.model.output_layer_bias = false;
  check_masked(config, std::span(kWithoutStages).first(3));
}

// Stages that end with the encoder, within it and within the decoder; tied and untied.
TEST(MaskedParity, T5Stages) {
  const std::vector<Layout> layouts = {
      {.name = "pp2", .pp = 2},
      {.name = "tp2 sp pp4", .tp = 2, .pp = 4, .sp = true},
      {.name = "pp2 dp2, all sharded", .pp = 2, .dp = 2, .change = all_sharded},
      {.name = "zb-h1, layers made again", .pp = 4, .change = [](Config& config) {
         config.parallel.pipeline_schedule = PipelineSchedule::zb_h1;
         recompute_all(config);
       }}};
  for (int64_t encoder : {1, 2, 3}) {
    SCOPED_TRACE(encoder);
    Config config = t5(PositionEmbedding::learned_absolute);
    ModelConfig& model = config.model;
    model.encoder_num_layers = encoder;
    model.num_layers = model.decoder_num_layers = 4 - encoder;
    if (encoder == 3) model.share_embeddings_and_output_weights = model.output_layer_bias = false;
    check_masked(config, layouts);
  }
}

// What is masked from the encoder must not reach the decoder: other tokens there change nothing.
TEST(MaskedParity, PaddingIsNotSeen) {
  for (Config config : {bert(true), t5(PositionEmbedding::learned_absolute)}) {
    config.model.attention_dropout = config.model.hidden_dropout = 0;
    struct OtherPadding final : BatchSource {
      explicit OtherPadding(std::shared_ptr<const BatchSource> from) : from(std::move(from)) {}
      int64_t length() const override { return from->length(); }
      std::vector<Batch> step(const StepRequest& request) const override {
        std::vector<Batch> batches = from->step(request);
        for (Batch& batch : batches) {
          const bool is_t5 = batch.extra.contains("encoder_ids");
          const Tensor mask = batch.extra.at(is_t5 ? "encoder_mask" : "padding_mask");
          int64_t* ids = is_t5 ? batch.extra.at("encoder_ids").data<int64_t>() : batch.ids.data();
          for (int64_t i = 0; i < mask.numel(); ++i)
            if (mask.data<int64_t>()[i] == 0) ids[i] = 9, ++changed;
        }
        return batches;
      }
      std::shared_ptr<const BatchSource> from;
      mutable int64_t changed = 0;
    };
    const auto source = source_of(config);
    const auto other = std::make_shared<const OtherPadding>(source);
    const std::vector<std::vector<int64_t>> one_step(1);
    const Trained plain = train_layout(config, {.source = source}, one_step);
    const Trained padded = train_layout(config, {.source = other}, one_step);
    EXPECT_GT(other->changed, 0);
    EXPECT_NEAR(plain.losses[0], padded.losses[0], 1e-12);
  }
}

// Megatron-LM's BERT of this size has 6702 parameters.
TEST(MaskedParity, BertHasItsHeads) {
  ModelConfig model;
  model.model_type = ModelType::bert;
  model.num_layers = 2;
  model.hidden_size = 12;
  model.num_attention_heads = model.num_query_groups = 4;
  model.kv_channels = 3;
  model.ffn_hidden_size = 48;
  model.vocab_size = 100;
  model.seq_length = model.max_position_embeddings = 4;
  model.make_vocab_size_divisible_by = 1;
  model.masked_lm_head = model.bidirectional_attention = true;
  model.share_embeddings_and_output_weights = false;
  int64_t count = 0;
  whole_model(model)->visit([&](Parameter& parameter) { count += parameter.shard.global_shape.numel(); });
  EXPECT_EQ(count, 6702);
}

}  // namespace
}  // namespace megatron::testing
