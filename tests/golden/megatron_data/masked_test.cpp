// BERT, T5 and FIM datasets against those that Megatron-LM built, every value exact.
#include "golden/megatron_data/data_fixture.h"
#include "megatron/datasets/gpt/fim.h"
#include "megatron/datasets/index/md5.h"
#include "megatron/datasets/masked/bert_dataset.h"
#include "megatron/datasets/masked/t5_dataset.h"

namespace megatron::testing {
namespace {

namespace fs = std::filesystem;

std::vector<double> numbers(IndexRange range) {
  std::vector<double> values;
  for (int64_t i = range.begin; i < range.end; ++i) values.push_back(static_cast<double>(i));
  return values;
}

// Rows of samples by field, compared at the end.
class Fields {
 public:
  template <class Values>
  void add(const std::string& name, const Values& values) {
    fields_[name].insert(fields_[name].end(), values.begin(), values.end());
  }
  void compare(const SafetensorsFile& expected, const std::string& split) const {
    for (const auto& [name, values] : fields_) EXPECT_TRUE(equals(expected, split + "." + name, values));
  }

 private:
  std::map<std::string, std::vector<double>> fields_;
};

MaskedDatasetConfig config_of(const Json& meta) {
  MaskedDatasetConfig config;
  const Json &tokenizer = meta.at("tokenizer"), &options = meta.at("options");
  config.identity = identity_of(meta, tokenizer.at("unique_identifiers"));
  WordPieces& pieces = config.vocabulary;
  for (size_t i = 0; i < tokenizer.at("inv_vocab").size(); ++i) {
    pieces.ids.push_back(static_cast<int64_t>(i));
    pieces.continuation.push_back(tokenizer.at("inv_vocab")[i].as_string().starts_with("##"));
  }
  pieces.cls = tokenizer.at("cls").as_int();
  pieces.sep = tokenizer.at("sep").as_int();
  pieces.mask = tokenizer.at("mask").as_int();
  pieces.bos = tokenizer.at("bos").as_int();
  pieces.eos = tokenizer.at("eos").as_int();
  pieces.pad = resolve_pad_id(optional_int(tokenizer.at("pad")), std::array{pieces.eos}, false);
  for (const Json& id : tokenizer.at("additional_special_tokens_ids").as_array())
    pieces.sentinels.push_back(id.as_int());
  config.masking = {.probability = options.at("masking_probability").as_double(),
                    .max_ngram = options.at("masking_max_ngram").as_int(),
                    .full_word = options.at("masking_do_full_word").as_bool(),
                    .permutation = options.at("masking_do_permutation").as_bool(),
                    .longer_ngrams = options.at("masking_use_longer_ngrams").as_bool(),
                    .geometric = options.at("masking_use_geometric_distribution").as_bool()};
  config.short_sequence_probability = options.at("short_sequence_probability").as_double();
  return config;
}

void add_fields(Fields& fields, const BertSample& sample) {
  fields.add("text", sample.text);
  fields.add("types", sample.types);
  fields.add("labels", sample.labels);
  fields.add("loss_mask", sample.loss_mask);
  fields.add("padding_mask", sample.padding_mask);
  fields.add("is_random", std::array{sample.is_random});
  fields.add("truncated", std::array{sample.truncated});
}

void add_fields(Fields& fields, const T5Sample& sample) {
  fields.add("text_enc", sample.text_enc);
  fields.add("enc_mask", sample.enc_mask);
  fields.add("text_dec", sample.text_dec);
  fields.add("dec_mask", sample.dec_mask);
  fields.add("labels", sample.labels);
  fields.add("loss_mask", sample.loss_mask);
  fields.add("truncated", std::array{sample.truncated});
}

class MaskedGolden : public InGoldenFolder, public ::testing::WithParamInterface<std::string> {
 protected:
  MaskedGolden() : InGoldenFolder("megatron_data_masked") {}

  void compare_cache(const std::string& folder, const std::string& stem,
                     std::initializer_list<const char*> files) {
    for (const char* file : files) {
      ASSERT_TRUE(fs::exists(fs::path(folder) / (stem + file))) << stem << file;
      EXPECT_EQ(read_text((fs::path(folder) / (stem + file)).string()),
                read_text((fs::path("cache") / GetParam() / (stem + file)).string()));
    }
  }

  template <class Make>
  void compare(const std::string& class_name, Make make) {
    const Json meta = json(GetParam());
    MaskedDatasetConfig config = config_of(meta);
    TempDir cache;
    config.cache_path = cache.path();
    auto dataset = std::make_shared<const IndexedDataset>("data/" + meta.at("dataset").as_string());
    const auto sizes = golden_sizes(meta.at("sizes"));
    if (meta.contains("build_raises")) {
      EXPECT_THROW(make(dataset, config, meta, Split::train, std::array{0.0, 0.8}, sizes[0]), ConfigError);
      return;
    }
    const SafetensorsFile expected = tensors(GetParam());
    for (Split split : kSplits) {
      const std::string name(name_of(split));
      const Json& info = meta.at("splits").at(name);
      const auto s = static_cast<size_t>(split);
      const auto data = make(dataset, config, meta, split, *(*config.identity.matrix)[s], sizes[s]);
      EXPECT_EQ(data.size(), info.at("len").as_int());
      EXPECT_EQ(python_json(data.description()), info.at("unique_description").as_string());
      EXPECT_EQ(config.vocabulary.pad, info.at("pad_token_id").as_int());
      EXPECT_TRUE(equals(expected, name + ".indices", numbers(data.samples().documents())));
      EXPECT_TRUE(equals(expected, name + ".sample_index", doubles_of(data.samples().map())));
      compare_cache(cache.path(), info.at("unique_description_hash").as_string() + "-" + class_name + "-",
                    {"description.txt", "sample_index.npy"});
      const Json* seed = meta.find("global_numpy_seed");
      RandomState global(static_cast<uint32_t>(seed ? seed->as_int() : 0));
      Fields fields;
      for (int64_t i = 0; i < std::min<int64_t>(64, data.size()); ++i) {
        if (info.at("raises").contains(std::to_string(i))) {
          EXPECT_THROW(data.sample(i, &global), Error) << i;
        } else {
          add_fields(fields, data.sample(i, &global));
        }
      }
      fields.compare(expected, name);
    }
  }
};

class BertGolden : public MaskedGolden {};
TEST_P(BertGolden, Samples) {
  compare("BERTMaskedWordPieceDataset", [](const auto& dataset, const auto& config, const Json& meta,
                                           Split split, auto ends, auto samples) {
    return BertDataset(dataset, config, meta.at("options").at("classification_head").as_bool(), split, ends,
                       samples);
  });
}
INSTANTIATE_TEST_SUITE_P(Cases, BertGolden,
                         ::testing::ValuesIn(golden_cases("megatron_data_masked", "bert_")),
                         [](const auto& info) { return info.param; });

class T5Golden : public MaskedGolden {};
TEST_P(T5Golden, Samples) {
  compare("T5MaskedWordPieceDataset", [](const auto& dataset, const auto& config, const Json& meta,
                                         Split split, auto ends, auto samples) {
    return T5Dataset(dataset, config, meta.at("options").at("sequence_length_decoder").as_int(), split, ends,
                     samples);
  });
}
INSTANTIATE_TEST_SUITE_P(Cases, T5Golden, ::testing::ValuesIn(golden_cases("megatron_data_masked", "t5_")),
                         [](const auto& info) { return info.param; });

// Greedy longest match over the pieces behind the special ones.
TextCodec greedy_codec(const Json& tokenizer) {
  std::vector<std::string> pieces;
  for (const Json& piece : tokenizer.at("pieces").as_array()) pieces.push_back(piece.as_string());
  const auto special = static_cast<size_t>(tokenizer.at("special_count").as_int());
  return {.encode =
              [=](const std::string& text) {
                std::vector<int64_t> ids;
                for (size_t at = 0; at < text.size();) {
                  size_t best = 0;
                  for (size_t i = special; i < pieces.size(); ++i) {
                    const bool longer = best == 0 || pieces[i].size() > pieces[best].size();
                    if (longer && text.compare(at, pieces[i].size(), pieces[i]) == 0) best = i;
                  }
                  require(best > 0, "no piece matches");
                  ids.push_back(static_cast<int64_t>(best));
                  at += pieces[best].size();
                }
                return ids;
              },
          .decode =
              [=](const std::vector<int64_t>& ids) {
                std::string text;
                for (int64_t id : ids)
                  if (static_cast<size_t>(id) >= special) text += pieces[static_cast<size_t>(id)];
                return text;
              }};
}

class FimGolden : public MaskedGolden {};
TEST_P(FimGolden, Samples) {
  const Json meta = json(GetParam());
  const Json &tokenizer = meta.at("tokenizer"), &ids = meta.at("fim_token_ids"), &rates = meta.at("options");
  GptDatasetConfig config;
  Json identifiers = Json::object();
  identifiers["class"] = "FimTokenizer";
  identifiers["vocab_size"] = tokenizer.at("pieces").size();
  config.identity = identity_of(meta, identifiers);
  config.sample.create_attention_mask = false;
  config.sample.eod = tokenizer.at("eod").as_int();
  config.sample.pad = resolve_pad_id(optional_int(tokenizer.at("pad")), std::array{config.sample.eod}, false);
  FimOptions options{.rate = rates.at("fim_rate").as_double(),
                     .spm_rate = rates.at("fim_spm_rate").as_double()};
  if (!rates.at("fim_split_sample").is_null()) {
    for (size_t i = 0; i < tokenizer.at("pieces").size(); ++i)
      if (tokenizer.at("pieces")[i] == rates.at("fim_split_sample"))
        options.split_token = static_cast<int64_t>(i);
    options.fragment_rate = rates.at("fim_fragment_rate").as_double();
  }
  if (!rates.at("fim_no_prefix").is_null()) options.no_prefix = rates.at("fim_no_prefix").as_string();
  options.prefix = ids.at("prefix").as_int();
  options.middle = ids.at("middle").as_int();
  options.suffix = ids.at("suffix").as_int();
  options.pad = ids.at("pad").as_int();
  options.eod = ids.at("eod").as_int();
  TempDir cache;
  config.cache_path = cache.path();
  const SafetensorsFile expected = tensors(GetParam());
  const auto sizes = golden_sizes(meta.at("sizes"));
  for (Split split : kSplits) {
    const std::string name(name_of(split));
    const auto s = static_cast<size_t>(split);
    const Json& info = meta.at("splits").at(name);
    const FimDataset data(
        GptDataset(std::make_shared<IndexedDataset>("data/" + meta.at("dataset").as_string()), config, split,
                   *(*config.identity.matrix)[s], sizes[s], "GPTFIMDataset"),
        options, greedy_codec(tokenizer));
    EXPECT_EQ(data.size(), info.at("len").as_int());
    EXPECT_EQ(python_json(data.description()), info.at("unique_description").as_string());
    EXPECT_TRUE(equals(expected, name + ".document_index", doubles_of(data.dataset().indices().documents)));
    EXPECT_TRUE(equals(expected, name + ".sample_index", doubles_of(data.dataset().indices().samples)));
    EXPECT_TRUE(equals(expected, name + ".shuffle_index", doubles_of(data.dataset().indices().shuffle)));
    compare_cache(cache.path(),
                  info.at("unique_description_hash").as_string() + "-GPTFIMDataset-" + name + "-",
                  {"description.txt", "document_index.npy", "sample_index.npy", "shuffle_index.npy"});
    RandomState stream(config.identity.seed);
    KeptMask mask;
    Fields fields;
    for (int64_t i = 0; i < info.at("stored_samples").as_int(); ++i) {
      GptSample sample = data.sample(i, stream);
      mask.keep(config.sample, sample);
      fields.add("tokens", sample.tokens);
      fields.add("labels", sample.labels);
      fields.add("loss_mask", sample.loss_mask);
      fields.add("position_ids", sample.position_ids);
    }
    fields.compare(expected, name);
  }
}
INSTANTIATE_TEST_SUITE_P(Cases, FimGolden, ::testing::ValuesIn(golden_cases("megatron_data_masked", "fim_")),
                         [](const auto& info) { return info.param; });

class MappingGolden : public InGoldenFolder {
 protected:
  MappingGolden() : InGoldenFolder("megatron_data") {}
};

TEST_F(MappingGolden, SentencesArePackedAlike) {
  const Json meta = json("bert_mapping");
  const SafetensorsFile expected = tensors("bert_mapping");
  const Tensor documents = expected.tensor("docs"), sizes = expected.tensor("sizes");
  const PackedArray<int64_t> ends(
      std::span<const int64_t>(documents.data<int64_t>(), static_cast<size_t>(documents.numel())));
  const PackedArray<int32_t> lengths(
      std::span<const int32_t>(sizes.data<int32_t>(), static_cast<size_t>(sizes.numel())));
  for (const auto& [name, row] : meta.as_object()) {
    const SentenceMapOptions options{.max_samples = row.at("max_num_samples").as_int(),
                                     .max_epochs = row.at("num_epochs").as_int(),
                                     .max_length = row.at("max_seq_length").as_int(),
                                     .short_probability = row.at("short_seq_prob").as_double(),
                                     .seed = static_cast<uint32_t>(row.at("seed").as_int()),
                                     .min_sentences = row.at("min_num_sent").as_int()};
    const IndexArray map = build_sentence_map(ends, {0, ends.size() - 1}, lengths, name, options, "");
    EXPECT_TRUE(equals(expected, name, doubles_of(map)));
  }
}

}  // namespace
}  // namespace megatron::testing
