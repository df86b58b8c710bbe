#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>
#include <thread>

#include "megatron/base/error.h"
#include "megatron/datasets/gpt/blend.h"
#include "megatron/datasets/gpt/gpt_dataset.h"
#include "megatron/datasets/gpt/mock_sequences.h"
#include "megatron/datasets/random/numpy_random.h"
#include "support/error_of.h"
#include "support/temp_dir.h"

namespace megatron::testing {
namespace {

// What step by step walking over documents gives, as the format is defined.
std::vector<int64_t> walk(const std::vector<int32_t>& lengths, const IndexArray& documents, int64_t samples,
                          int64_t length, int64_t extra) {
  std::vector<int64_t> rows = {0, 0};
  int64_t d = 0, offset = 0;
  for (int64_t s = 0; s < samples; ++s) {
    int64_t left = length + extra;
    while (left > 0) {
      const int64_t tokens = lengths[static_cast<size_t>(documents[d])] - offset;
      left -= tokens;
      if (left <= 0) {
        offset += left + tokens - extra;
      } else if (d == documents.rows() - 1) {
        offset = lengths[static_cast<size_t>(documents[d])] - extra;
        break;
      } else {
        ++d;
        offset = 0;
      }
    }
    rows.push_back(d);
    rows.push_back(offset);
  }
  return rows;
}

TEST(GptIndices, EqualWalkingStepByStep) {
  RandomState random(5);
  CpuPool pool(3);
  for (int round = 0; round < 200; ++round) {
    const bool large = round == 0;  // over several blocks of documents
    std::vector<int32_t> lengths(large ? 300000 : static_cast<size_t>(random.randint(1, 40)));
    for (int32_t& length : lengths) length = static_cast<int32_t>(random.randint(0, 60));
    lengths[0] = 50;
    GptIndexOptions options{.seq_length = random.randint(1, 50),
                            .seed = static_cast<uint32_t>(round),
                            .extra_token = random.bernoulli(0.5),
                            .drop_last_partial = random.bernoulli(0.5)};
    if (!large && random.bernoulli(0.7)) options.num_samples = random.randint(1, 200);
    const PackedArray<int32_t> view{std::span<const int32_t>(lengths)};
    const GptIndices indices = load_or_build_gpt_indices(view, {0, view.size()}, "test", options, {}, pool);
    const int64_t samples = indices.samples.rows() - 1;
    EXPECT_EQ(indices.shuffle.rows(), samples);
    if (options.num_samples) {
      EXPECT_GE(samples, *options.num_samples);
    }
    const auto expected =
        walk(lengths, indices.documents, samples, options.seq_length, options.extra_token ? 1 : 0);
    for (size_t i = 0; i < expected.size(); ++i)
      ASSERT_EQ(indices.samples[static_cast<int64_t>(i)], expected[i])
          << "round " << round << ", element " << i;
  }
}

TEST(GptIndices, SamplesOfNothingAreRefused) {
  const std::vector<int32_t> lengths = {0, 0};
  const PackedArray<int32_t> view{std::span<const int32_t>(lengths)};
  CpuPool pool(1);
  const GptIndexOptions options{.seq_length = 8, .num_samples = 3};
  EXPECT_NE(error_of([&] {
              load_or_build_gpt_indices(view, {0, 2}, "empty", options, {}, pool);
            }).find("split without tokens"),
            std::string::npos);
}

TEST(IndexArray, FilesOfWrongShapeAreRefused) {
  TempDir dir;
  {
    IndexArrayBuilder builder(dir / "a.npy", IndexType::i4, {3, 2});
    std::iota(builder.values<int32_t>().begin(), builder.values<int32_t>().end(), 10);
    builder.finish();
  }
  const IndexArray array = open_npy(dir / "a.npy");
  EXPECT_EQ(array.at(2, 1), 15);
  const std::string good = read_text(dir / "a.npy");
  EXPECT_EQ(good.size() % 64, 24u);
  auto error_with = [&](std::string text) {
    write_text(dir / "b.npy", text);
    return error_of([&] { open_npy(dir / "b.npy"); });
  };
  auto replaced = [&](const std::string& from, const std::string& to) {
    return std::string(good).replace(good.find(from), from.size(), to);
  };
  EXPECT_EQ(error_with(good), "no error");
  EXPECT_NE(error_with(good.substr(0, good.size() - 1)).find("do not match"), std::string::npos);
  EXPECT_NE(error_with(good.substr(0, 9)).find("cut"), std::string::npos);
  EXPECT_NE(error_with(good.substr(0, 60)).find("leaves the file"), std::string::npos);
  EXPECT_NE(error_with(replaced("(3, 2)", "(3,-2)")).find("malformed shape"), std::string::npos);
  EXPECT_NE(error_with(replaced("(3, 2)", "(9, 2)")).find("do not match"), std::string::npos);
  EXPECT_NE(error_with(replaced("False", "True ")).find("Fortran"), std::string::npos);
  EXPECT_NE(error_with(replaced("<i4", "<f4")).find("type"), std::string::npos);
}

TEST(IndexCache, PythonsJson) {
  Json json = Json::object();
  json["path"] = "d\xc3\xa9j\xc3\xa0/\xf0\x9f\x98\x80\n\"";
  json["none"] = nullptr;
  json["small"] = 1e-05;
  json["list"] = Json::array();
  EXPECT_EQ(python_json(json),
            "{\n    \"path\": \"d\\u00e9j\\u00e0/\\ud83d\\ude00\\n\\\"\",\n    \"none\": null,\n    "
            "\"small\": 1e-05,\n"
            "    \"list\": []\n}");
}

// What can be mended is refused, where a fault would be the machine's.
TEST(IndexCache, AFolderThatCannotBeWritten) {
  const TempDir dir;
  write_text(dir / "file", "x");
  const IndexCache cache(dir / "file/cache", Json("some"), "GPTDataset-train");
  try {
    cache.prepare();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 1);
    EXPECT_EQ(std::string(error.what()), "the index cache " + dir / "file/cache" +
                                             " cannot be written: Not a directory; name another folder with "
                                             "--data-cache-path");
  }
}

TEST(GptDataset, ChangedDataIsIndexedAgain) {
  TempDir dir;
  CpuPool pool(1);
  const IndexCache cache(dir.path(), Json("same description"), "GPTDataset-train");
  const GptIndexOptions options{.seq_length = 4, .num_samples = 5};
  std::vector<int32_t> lengths(20, 7);
  auto build = [&] {
    const PackedArray<int32_t> view{std::span<const int32_t>(lengths)};
    return load_or_build_gpt_indices(view, {0, view.size()}, "data", options, cache, pool);
  };
  EXPECT_EQ(build().documents.rows(), 20);
  lengths.resize(30, 9);
  EXPECT_EQ(build().documents.rows(), 30);
  // A damaged file is built again, too.
  write_text(cache.path("sample_index.npy"), "nothing");
  EXPECT_EQ(build().samples.rows(), (20 * 7 + 10 * 9 - 1) / 4 + 1);
}

TEST(GptDataset, ThreadsMayBuildTheSameIndex) {
  TempDir dir;
  const std::vector<int32_t> lengths(5000, 7);
  const PackedArray<int32_t> view{std::span<const int32_t>(lengths)};
  const IndexCache cache(dir.path(), Json("shared"), "GPTDataset-train");
  std::vector<int64_t> rows(4);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < rows.size(); ++t) {
    threads.emplace_back([&, t] {
      CpuPool pool(1);
      rows[t] = load_or_build_gpt_indices(view, {0, view.size()}, "data", {.seq_length = 4}, cache, pool)
                    .samples.rows();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(rows, std::vector<int64_t>(4, (5000 * 7 - 1) / 4 + 1));
  for (const auto& entry : std::filesystem::directory_iterator(dir.path()))
    EXPECT_FALSE(entry.path().string().ends_with(".partial")) << entry.path();
}

TEST(GptDataset, MockDataAndPadding) {
  GptDatasetConfig config;
  config.identity.seq_length = 128;
  config.cache = false;
  config.sample.eod = 49;
  const GptDataset dataset(std::make_shared<MockSequences>(50, 49), config, Split::train, {0.0, 0.5}, 100);
  const GptSample sample = dataset.sample(99), padding = dataset.padding();
  EXPECT_EQ(sample.tokens.size(), 128u);
  EXPECT_EQ(sample.labels[5], sample.tokens[6]);
  EXPECT_EQ(sample.attention_mask.size(), 128u * 128u);
  EXPECT_EQ(std::accumulate(padding.loss_mask.begin(), padding.loss_mask.end(), 0.0f), 0.0f);
  EXPECT_EQ(padding.tokens, std::vector<int64_t>(128, 0));
  EXPECT_THROW(dataset.sample(dataset.size()), Error);
}

TEST(Blend, TooFewSamplesAreNamed) {
  const BlendPlan plan{.weights = {0.5, 0.5}, .sizes = {10, 3}, .size = 20};
  EXPECT_NE(error_of([&] { load_or_build_blend_index(plan, {}); }).find("--mid-level-dataset-surplus"),
            std::string::npos);
}

}  // namespace
}  // namespace megatron::testing
