// .bin/.idx files, samplers, generators and parsers against values of Megatron-LM, NumPy and torch.
#include "golden/megatron_data/data_fixture.h"
#include "megatron/datasets/gpt/blend.h"
#include "megatron/datasets/indexed/indexed_writer.h"
#include "megatron/datasets/random/numpy_random.h"
#include "megatron/datasets/random/torch_random.h"
#include "support/samplers.h"

namespace megatron::testing {
namespace {

class IndexedGolden : public InGoldenFolder {
 protected:
  IndexedGolden() : InGoldenFolder("megatron_data") {}
};

TEST_F(IndexedGolden, ReadsAndWritesTheSameBytes) {
  const Json meta = json("indexed");
  for (const auto& [name, info] : meta.as_object()) {
    if (name == "optimal_dtype" || name == "merged") continue;
    const SafetensorsFile expected = tensors("indexed_" + name);
    for (bool mmap : {true, false}) {
      const IndexedDataset dataset("data/" + name, {.mmap = mmap});
      dataset.verify();
      EXPECT_EQ(static_cast<int>(dataset.type()), info.at("dtype_code").as_int());
      EXPECT_EQ(name_of(dataset.type()), info.at("dtype").as_string());
      EXPECT_EQ(dataset.sequences(), info.at("num_sequences").as_int());
      EXPECT_EQ(dataset.documents(), info.at("num_documents").as_int());
      std::vector<double> lengths, documents, flat;
      TempDir dir;
      IndexedWriter writer(dir / "copy", dataset.type());
      for (int64_t d = 0; d < dataset.documents(); ++d) {
        for (int64_t i = dataset.document_index()[d]; i < dataset.document_index()[d + 1]; ++i) {
          std::vector<int64_t> tokens(static_cast<size_t>(dataset.lengths()[i]));
          dataset.read(i, 0, tokens);
          writer.add_sequence(tokens);
          lengths.push_back(dataset.lengths()[i]);
          flat.insert(flat.end(), tokens.begin(), tokens.end());
        }
        writer.end_document();
      }
      for (int64_t d = 0; d <= dataset.documents(); ++d)
        documents.push_back(static_cast<double>(dataset.document_index()[d]));
      writer.commit();
      EXPECT_TRUE(equals(expected, "sequence_lengths", lengths));
      EXPECT_TRUE(equals(expected, "document_indices", documents));
      EXPECT_TRUE(equals(expected, "flat_tokens", flat));
      std::vector<int64_t> part(3);
      dataset.read(2, 1, part);
      EXPECT_TRUE(equals(expected, "slice_2_off1_len3", doubles(part)));
      EXPECT_EQ(read_text(dir / "copy.bin"), read_text("data/" + name + ".bin"));
      EXPECT_EQ(read_text(dir / "copy.idx"), read_text("data/" + name + ".idx"));
    }
  }
}

TEST_F(IndexedGolden, Merges) {
  TempDir dir;
  merge_datasets({"data/u16_small", "data/u16_tiny"}, dir / "merged");
  EXPECT_EQ(read_text(dir / "merged.bin"), read_text("data/merged.bin"));
  EXPECT_EQ(read_text(dir / "merged.idx"), read_text("data/merged.idx"));
}

TEST_F(IndexedGolden, ChoosesTheWidth) {
  const Json meta = json("indexed");
  for (const auto& [vocab, type] : meta.at("optimal_dtype").as_object()) {
    const std::optional<int64_t> size =
        vocab == "None" ? std::nullopt : std::optional<int64_t>(std::stoll(vocab));
    EXPECT_EQ(name_of(token_type_for(size)), type.as_string()) << vocab;
  }
}

TEST_F(IndexedGolden, Samplers) {
  const Json meta = json("samplers");
  int compared = 0;
  for (const Json& row : meta.at("cases").as_array()) {
    const std::string& type = row.at("type").as_string();
    SamplerShape shape{.total = row.at("total").as_int(), .ranks = row.at("dp").as_int()};
    if (const Json* mbs = row.find("mbs")) shape.micro_batch = mbs->as_int();
    if (const Json* consumed = row.find("consumed")) shape.consumed = consumed->as_int();
    for (int64_t rank = 0; rank < shape.ranks; ++rank) {
      SamplerBatches batches;
      if (type == "sequential") {
        batches = sequential_batches(shape, rank, row.at("drop_last").as_bool());
      } else if (type == "random") {
        batches = cyclic_batches(shape, rank, row.at("data_sharding").as_bool());
      } else if (type == "full_validation") {
        batches = full_validation_batches(shape.total, rank, shape.ranks);
      } else {
        ASSERT_EQ(type, "hybrid_cp");
        batches = hybrid_batches(shape, rank, row.at("gbs").as_int());
      }
      Json list = Json::array();
      for (const auto& batch : batches) {
        Json entry = Json::array();
        for (int64_t sample : batch) entry.push_back(sample);
        list.push_back(std::move(entry));
      }
      EXPECT_EQ(list.dump(), row.at("ranks")[static_cast<size_t>(rank)].dump()) << type << " rank " << rank;
      ++compared;
    }
  }
  EXPECT_GT(compared, 300);
  for (const auto& [key, values] : meta.at("torch_randperm_cpu").as_object()) {
    const size_t line = key.find('_');
    const auto order = torch_randperm(std::stoll(key.substr(0, line)), std::stoull(key.substr(line + 1)));
    ASSERT_EQ(order.size(), values.size());
    for (size_t i = 0; i < order.size(); ++i) ASSERT_EQ(order[i], values[i].as_int()) << key;
  }
}

TEST_F(IndexedGolden, RandomState) {
  const SafetensorsFile expected = tensors("numpy_rng");
  for (uint32_t seed : {0u, 1234u}) {
    RandomState shuffling(seed);
    std::vector<int32_t> a(100);
    std::vector<uint32_t> b(257);
    for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<uint32_t>(i);
    for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<int32_t>(i);
    shuffling.shuffle(a);
    shuffling.shuffle(b);
    std::vector<double> both = doubles(a);
    both.insert(both.end(), b.begin(), b.end());
    EXPECT_TRUE(equals(expected, fmt::format("{}.shuffle100_then_257", seed), both));
    RandomState drawing(seed), raw(seed);
    std::vector<double> ints, reals, words;
    for (int i = 0; i < 64; ++i) ints.push_back(static_cast<double>(drawing.randint(0, 1000)));
    for (int i = 0; i < 16; ++i) reals.push_back(drawing.uniform());
    for (int i = 0; i < 32; ++i) words.push_back(raw.next32());
    EXPECT_TRUE(equals(expected, fmt::format("{}.randint_0_1000", seed), ints));
    EXPECT_TRUE(equals(expected, fmt::format("{}.random_sample_after", seed), reals));
    EXPECT_TRUE(equals(expected, fmt::format("{}.raw_uint32", seed), words));
  }
}

Json matrix_or_error(const std::string& text) {
  try {
    return split_matrix_json(split_matrix(parse_split(text)));
  } catch (const ConfigError&) {
    return "refused";
  }
}

TEST(ParsersGolden, SplitsAndBlends) {
  const Json meta = golden_json("megatron_parallel", "parsers");
  for (const Json& row : meta.at("split").as_array()) {
    const std::string& text = row.at("in").as_string();
    // Zeros alone give NaN upstream; they are refused here.
    const Json* ok = text == "0,0,0" ? nullptr : row.at("out").find("ok");
    EXPECT_EQ(matrix_or_error(text).dump(), ok ? ok->at("matrix").dump() : "\"refused\"") << text;
  }
  for (const Json& row : meta.at("split_pairs").as_array()) {
    auto vector = [&](const char* key) {
      return SplitVector{row.at(key)[0].as_double(), row.at(key)[1].as_double(), row.at(key)[2].as_double()};
    };
    EXPECT_EQ(split_matrix_json(split_matrix(vector("a"), vector("b"))).dump(),
              row.at("out").at("ok").dump());
  }
  for (const Json& row : meta.at("blend").as_array()) {
    std::vector<std::string> words;
    if (!row.at("in").is_null())
      for (const Json& word : row.at("in").as_array()) words.push_back(word.as_string());
    const std::optional<Blend> blend = parse_blend(words);
    Json json;
    if (blend) {
      json = Json::array();
      json.push_back(Json(Json::Array(blend->prefixes.begin(), blend->prefixes.end())));
      json.push_back(blend->weights ? Json(Json::Array(blend->weights->begin(), blend->weights->end()))
                                    : Json());
    }
    EXPECT_EQ(json.dump(), row.at("out").at("ok").dump());
  }
}

}  // namespace
}  // namespace megatron::testing
