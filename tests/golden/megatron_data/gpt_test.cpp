// GPT datasets and blends against those that Megatron-LM built: indices, cache files and samples, every value
// exact.
#include "golden/megatron_data/data_fixture.h"
#include "megatron/datasets/gpt/blended_dataset.h"
#include "megatron/datasets/gpt/mock_sequences.h"
#include "megatron/datasets/index/md5.h"

namespace megatron::testing {
namespace {

namespace fs = std::filesystem;

Json fake_tokenizer(int64_t vocab_size) {
  Json json = Json::object();
  json["class"] = "FakeTokenizer";
  json["vocab_size"] = vocab_size;
  return json;
}

bool flag(const Json& options, std::string_view name, bool otherwise) {
  const Json* value = options.find(name);
  return value ? value->as_bool() : otherwise;
}

GptDatasetConfig config_of(const Json& meta) {
  GptDatasetConfig config;
  config.identity = identity_of(meta, fake_tokenizer(meta.at("vocab_size").as_int()));
  const Json& options = meta.at("options");
  config.sample.extra_token = flag(options, "add_extra_token_to_sequence", true);
  config.sample.reset_position_ids = flag(options, "reset_position_ids", false);
  config.sample.reset_attention_mask = flag(options, "reset_attention_mask", false);
  config.sample.eod_mask_loss = flag(options, "eod_mask_loss", false);
  config.sample.create_attention_mask = flag(options, "create_attention_mask", false);
  config.sample.inter_document_masking = flag(options, "inter_document_masking", false);
  config.drop_last_partial_validation = flag(options, "drop_last_partial_validation_sequence", true);
  config.sample.eod = meta.at("eod").as_int();
  config.sample.pad =
      resolve_pad_id(optional_int(meta.at("pad_token")), std::array{config.sample.eod}, false);
  return config;
}

class GptGolden : public InGoldenFolder, public ::testing::WithParamInterface<std::string> {
 protected:
  GptGolden() : InGoldenFolder("megatron_data") {}

  std::array<std::optional<BlendedDataset<GptDataset>>, 3> build(const Json& meta, const std::string& cache,
                                                                 int threads) {
    GptDatasetConfig config = config_of(meta);
    config.cache_path = cache;
    config.threads = threads;
    DataSource source{.blend = Blend{{"data/" + meta.at("dataset").as_string()}, {}},
                      .matrix = config.identity.matrix};
    return build_splits<GptDataset>(source, golden_sizes(meta.at("sizes")),
                                    [&](const std::string& prefix, Split split, auto ends, auto samples) {
                                      return std::make_shared<const GptDataset>(
                                          std::make_shared<IndexedDataset>(prefix), config, split, ends,
                                          samples);
                                    });
  }
};

TEST_P(GptGolden, IndicesCachesAndSamples) {
  const Json meta = json(GetParam());
  const SafetensorsFile expected = tensors(GetParam());
  TempDir cache;
  const auto splits = build(meta, cache.path(), 2);
  const fs::path upstream = "cache/" + GetParam().substr(4);
  for (Split split : kSplits) {
    const std::string name(name_of(split));
    const Json& info = meta.at("splits").at(name);
    ASSERT_EQ(splits[static_cast<size_t>(split)].has_value(), !info.is_null()) << name;
    if (info.is_null()) continue;
    const GptDataset& dataset = *splits[static_cast<size_t>(split)]->datasets()[0];
    EXPECT_EQ(dataset.size(), info.at("len").as_int());
    EXPECT_EQ(python_json(dataset.description()), info.at("unique_description").as_string());
    EXPECT_EQ(dataset.options().pad, info.at("pad_token_id").as_int());
    EXPECT_TRUE(equals(expected, name + ".document_index", doubles_of(dataset.indices().documents)));
    EXPECT_TRUE(equals(expected, name + ".sample_index", doubles_of(dataset.indices().samples)));
    EXPECT_TRUE(equals(expected, name + ".shuffle_index", doubles_of(dataset.indices().shuffle)));
    std::vector<double> indices;
    for (int64_t i = dataset.sequences().begin; i < dataset.sequences().end; ++i)
      indices.push_back(static_cast<double>(i));
    EXPECT_TRUE(equals(expected, name + ".indices", indices));

    KeptMask mask;
    std::map<std::string, std::vector<double>> fields;
    for (int64_t i = 0; i < info.at("stored_samples").as_int(); ++i) {
      GptSample sample = dataset.sample(i);
      mask.keep(dataset.options(), sample);
      auto add = [&](const std::string& field, const auto& values) {
        std::vector<double>& all = fields[name + "." + field];
        all.insert(all.end(), values.begin(), values.end());
      };
      add("tokens", sample.tokens);
      add("labels", sample.labels);
      add("loss_mask", sample.loss_mask);
      add("position_ids", sample.position_ids);
      if (!sample.cu_seqlens.empty()) add("cu_seqlens", sample.cu_seqlens);
      if (!sample.attention_mask.empty() && i < 6) add("attention_mask", sample.attention_mask);
    }
    for (const auto& [field, values] : fields) EXPECT_TRUE(equals(expected, field, values));

    // The files themselves are those that Megatron-LM wrote.
    const std::string stem = info.at("unique_description_hash").as_string() + "-GPTDataset-" + name + "-";
    for (const char* file :
         {"description.txt", "document_index.npy", "sample_index.npy", "shuffle_index.npy"}) {
      ASSERT_TRUE(fs::exists(cache / (stem + file))) << stem << file;
      EXPECT_EQ(read_text(cache / (stem + file)), read_text((upstream / (stem + file)).string()))
          << stem << file;
    }
  }
}

class UpstreamCache : public GptGolden {};

// Caches that Megatron-LM wrote are taken as they are; with another option they are built again.
TEST_P(UpstreamCache, IsTakenOrBuiltAgain) {
  Json meta = json(GetParam());
  TempDir cache;
  fs::copy("cache/" + GetParam().substr(4), cache.path());
  std::map<fs::path, fs::file_time_type> before;
  for (const auto& entry : fs::directory_iterator(cache.path()))
    before[entry.path()] = entry.last_write_time();
  build(meta, cache.path(), 1);
  build(meta, cache.path(), 1);
  for (const auto& [path, time] : before) EXPECT_EQ(fs::last_write_time(path), time) << path;

  const bool extra = flag(meta.at("options"), "add_extra_token_to_sequence", true);
  meta["options"]["add_extra_token_to_sequence"] = !extra;
  TempDir fresh;
  const auto shared = build(meta, cache.path(), 1), alone = build(meta, fresh.path(), 1);
  for (size_t s = 0; s < 3; ++s) {
    if (!shared[s]) continue;
    EXPECT_EQ(doubles_of(shared[s]->datasets()[0]->indices().samples),
              doubles_of(alone[s]->datasets()[0]->indices().samples));
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, UpstreamCache,
                         ::testing::Values("gpt_no_extra_token", "gpt_keep_partial_valid",
                                           "gpt_many_epochs_splits"),
                         [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(Cases, GptGolden, ::testing::ValuesIn(golden_cases("megatron_data", "gpt_")),
                         [](const auto& info) { return info.param; });

class BlendGolden : public InGoldenFolder {
 protected:
  BlendGolden() : InGoldenFolder("megatron_data") {}
};

TEST_F(BlendGolden, BareIndices) {
  const Json raw = json("blended").at("raw");
  const SafetensorsFile expected = tensors("blended");
  for (const auto& [key, list] : raw.as_object()) {
    const bool exhaustive = key.starts_with("exhaustive");
    std::vector<double> weights;
    std::vector<int64_t> sizes;
    for (const Json& value : list.as_array()) {
      weights.push_back(value.as_double());
      if (exhaustive) sizes.push_back(value.as_int());
    }
    const BlendIndex index =
        exhaustive ? build_exhaustive_index(sizes, {}) : build_blend_index(weights, 300, {});
    const std::string name = exhaustive ? key : "raw." + key;
    EXPECT_TRUE(equals(expected, name + ".dataset_index", doubles_of(index.datasets)));
    EXPECT_TRUE(equals(expected, name + ".dataset_sample_index", doubles_of(index.samples)));
  }
}

TEST_F(BlendGolden, Shares) {
  const Json meta = json("blended");
  for (const Json& row : meta.at("sizes").as_array()) {
    for (size_t w = 0; w < row.at("weights").size(); ++w) {
      for (size_t t = 0; t < row.at("targets").size(); ++t)
        EXPECT_EQ(blend_share(row.at("targets")[t].as_int(), row.at("weights")[w].as_double(),
                              row.at("surplus").as_double()),
                  row.at("result")[w][t].as_int());
    }
  }
}

std::optional<Blend> blend_of(const Json& json) {
  if (json.is_null()) return std::nullopt;
  Blend blend;
  for (const Json& prefix : json[0].as_array()) blend.prefixes.push_back(prefix.as_string());
  if (json[1].is_null()) return blend;
  blend.weights.emplace();
  for (const Json& weight : json[1].as_array()) blend.weights->push_back(weight.as_double());
  return blend;
}

TEST_F(BlendGolden, BuiltByWeightsSizesAndSplits) {
  const Json meta = json("blended");
  const SafetensorsFile expected = tensors("blended");
  for (const auto& [key, built] : meta.at("builder").as_object()) {
    TempDir cache;
    GptDatasetConfig config;
    config.identity.seq_length = 32;
    config.identity.tokenizer = fake_tokenizer(500);
    config.sample.create_attention_mask = false;
    config.sample.eod = 499;
    config.cache_path = cache.path();
    DataSource source{.blend = blend_of(built.at("blend")), .surplus = 0.02, .cache_path = cache.path()};
    if (source.blend) {
      config.identity.split = built.at("split").as_string();
      config.identity.matrix = source.matrix = split_matrix(parse_split(*config.identity.split));
    } else {
      for (size_t s = 0; s < 3; ++s) source.per_split[s] = blend_of(built.at("blend_per_split")[s]);
    }
    auto make = [&](const std::string& prefix, Split split, auto ends, auto samples) {
      return std::make_shared<const GptDataset>(std::make_shared<IndexedDataset>(prefix), config, split, ends,
                                                samples);
    };
    for (int pass = 0; pass < 2; ++pass) {  // built, then from the cache
      const auto splits = build_splits<GptDataset>(source, golden_sizes(built.at("sizes")), make);
      for (Split split : kSplits) {
        const auto& data = splits[static_cast<size_t>(split)];
        const Json* info = built.at("splits").find(name_of(split));
        ASSERT_EQ(data.has_value(), info != nullptr) << key;
        if (!data) continue;
        const std::string name = fmt::format("builder.{}.{}", key, name_of(split));
        EXPECT_EQ(data->blended(), info->at("class").as_string() == "BlendedDataset") << name;
        EXPECT_EQ(data->size(), info->at("len").as_int()) << name;
        EXPECT_EQ(python_json(data->description()), info->at("unique_description").as_string()) << name;
        EXPECT_EQ(md5_hex(python_json(data->description())), info->at("unique_description_hash").as_string());
        if (data->blended()) {
          EXPECT_TRUE(equals(expected, name + ".dataset_index", doubles_of(data->index().datasets)));
          EXPECT_TRUE(equals(expected, name + ".dataset_sample_index", doubles_of(data->index().samples)));
        }
        std::vector<double> tokens;
        for (int64_t i = 0; i < std::min<int64_t>(40, data->size()); ++i) {
          const GptSample sample = data->sample(i);
          tokens.insert(tokens.end(), sample.tokens.begin(), sample.tokens.end());
        }
        EXPECT_TRUE(equals(expected, name + ".tokens", tokens));
      }
    }
    // All files of blends are upstream's, byte for byte.
    int compared = 0;
    for (const auto& entry : fs::directory_iterator(cache.path())) {
      const fs::path theirs = fs::path("cache") / entry.path().filename();
      if (entry.path().string().ends_with("facts.json")) continue;
      ASSERT_TRUE(fs::exists(theirs)) << theirs;
      EXPECT_EQ(read_text(entry.path().string()), read_text(theirs.string())) << theirs;
      ++compared;
    }
    EXPECT_GT(compared, 5) << key;
  }
}

class MockGolden : public InGoldenFolder {
 protected:
  MockGolden() : InGoldenFolder("megatron_data") {}
};

TEST_F(MockGolden, LengthsAndTokens) {
  const MockSequences mock(1000, 999);
  const SafetensorsFile expected = tensors("mock");
  std::vector<double> lengths;
  int64_t total = 0;
  for (int64_t i = 0; i < mock.lengths().size(); ++i) {
    if (i < 1000) lengths.push_back(mock.lengths()[i]);
    total += mock.lengths()[i];
  }
  EXPECT_TRUE(equals(expected, "sequence_lengths_first_1000", lengths));
  EXPECT_EQ(total, 204637097);
  EXPECT_EQ(mock.lengths()[99999], 769);
  for (int64_t i = 0; i < 4; ++i) {
    std::vector<int64_t> tokens(static_cast<size_t>(mock.lengths()[i]));
    mock.read(i, 0, tokens);
    EXPECT_TRUE(equals(expected, fmt::format("doc{}", i), doubles(tokens)));
  }
}

}  // namespace
}  // namespace megatron::testing
