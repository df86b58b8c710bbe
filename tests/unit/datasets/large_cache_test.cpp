// Caches of a blend of a thousand million samples are opened without reading them: their files are holes.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>

#include "megatron/datasets/gpt/blended_dataset.h"
#include "megatron/datasets/indexed/indexed_dataset.h"
#include "support/temp_dir.h"

namespace megatron::testing {
namespace {

constexpr int64_t kSequences = 100'000'000, kSamples = 1'000'000'000;

// A file that begins with `head` and whose rest is a hole.
void write_hole(const std::string& path, std::string_view head, int64_t bytes) {
  write_text(path, head);
  std::filesystem::resize_file(path, static_cast<uintmax_t>(bytes));
}

void write_npy(const std::string& path, const std::string& type, const std::string& shape, int64_t bytes) {
  std::string text = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}", type, shape);
  text.resize(118 - 1, ' ');
  text += '\n';
  std::string head("\x93NUMPY\x01\x00\x76\x00", 10);
  write_hole(path, head + text, 128 + bytes);
}

// An index whose sequences are all empty, but for what the document index must end with.
void write_dataset(const std::string& prefix) {
  std::string head("MMIDIDX\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x08", 18);
  const auto append = [&](uint64_t value) { head.append(reinterpret_cast<const char*>(&value), 8); };
  append(kSequences);
  append(2);
  const int64_t bytes = 34 + 12 * kSequences + 16;
  write_hole(prefix + ".idx", head, bytes);
  std::fstream file(prefix + ".idx", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(bytes - 8);
  file.write(reinterpret_cast<const char*>(&kSequences), 8);
  write_text(prefix + ".bin", "");
}

int64_t page_faults() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt + usage.ru_majflt;
}

TEST(LargeCache, OpeningReadsNoIndex) {
  const TempDir dir;
  const std::string cache = dir / "cache";
  std::filesystem::create_directories(cache);
  GptDatasetConfig config;
  config.identity.seq_length = 4096;
  config.cache_path = cache;
  DataSource source{.cache_path = cache};
  const int64_t own = blend_share(kSamples, 0.5, source.surplus);
  const std::string count = std::to_string(own);
  source.per_split[0] = Blend{.prefixes = {dir / "a", dir / "b"}, .weights = std::vector{0.5, 0.5}};
  std::vector<Json> descriptions;
  for (const std::string& prefix : source.per_split[0]->prefixes) {
    write_dataset(prefix);
    descriptions.push_back(describe_dataset("GPTDataset", prefix, config.identity, Split::train, own));
    const IndexCache entry(cache, descriptions.back(), "GPTDataset-train");
    write_npy(entry.path("document_index.npy"), "<i4", fmt::format("{},", kSequences), 4 * kSequences);
    write_npy(entry.path("sample_index.npy"), "<i4", fmt::format("{}, 2", own + 1), 8 * (own + 1));
    write_npy(entry.path("shuffle_index.npy"), "<u4", count + ",", 4 * own);
    entry.publish(Json::parse(fmt::format(
        R"({{"extra_token": true, "drop_last_partial": true, "first_sequence": 0, "last_sequence": {0}, "sequences": {0}, "tokens": 0}})",
        kSequences)));
  }
  const BlendPlan plan{.weights = {0.5, 0.5}, .sizes = {own, own}, .size = kSamples};
  const IndexCache entry(cache, describe_blend(plan, descriptions, Split::train), "BlendedDataset-train");
  write_npy(entry.path("dataset_index.npy"), "<i2", std::to_string(kSamples) + ",", 2 * kSamples);
  write_npy(entry.path("dataset_sample_index.npy"), "<i8", std::to_string(kSamples) + ",", 8 * kSamples);
  entry.publish(Json::parse(fmt::format(R"({{"sizes": [{0}, {0}]}})", own)));

  const int64_t before = page_faults();
  const auto begin = std::chrono::steady_clock::now();
  const auto splits = build_splits<GptDataset>(
      source, {kSamples, std::nullopt, std::nullopt},
      [&](const std::string& prefix, Split split, auto ends, auto samples) {
        auto store = std::make_shared<IndexedDataset>(prefix);
        return std::make_shared<const GptDataset>(std::move(store), config, split, ends, samples);
      });
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  ASSERT_TRUE(splits[0]);
  EXPECT_EQ(splits[0]->size(), kSamples);
  EXPECT_LT(page_faults() - before, 2000);  // reading the lengths alone takes a hundred thousand
  RecordProperty("milliseconds", std::to_string(took.count() * 1e3));
  fmt::print("opened in {:.2f} ms\n", took.count() * 1e3);
}

}  // namespace
}  // namespace megatron::testing
