#include "megatron/training/run/same_settings.h"

#include <array>
#include <charconv>

#include "megatron/base/error.h"
#include "megatron/base/hash.h"
#include "megatron/base/json.h"

namespace megatron {
namespace {

// Sections that decide what is computed; where ranks live, what they print and where files are may differ.
constexpr std::array<std::string_view, 9> kCommon{"model",     "dist", "train", "validation", "optimizer",
                                                  "scheduler", "ddp",  "rng",   "dataset"};

bool is_number(const std::string& word) {
  double value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  return error == std::errc() && end == word.data() + word.size();
}

// Of the data, where files are and how they are read; how many they are, and their weights, stay.
void forget_places(DatasetConfig& data) {
  for (auto* words : {&data.data_path, &data.train_data_path, &data.valid_data_path, &data.test_data_path})
    for (std::string& word : *words)
      if (!is_number(word)) word.clear();
  for (std::string* path : {&data.data_args_path, &data.per_split_data_args_path, &data.replay,
                            &data.replay_routing, &data.dataset_root, &data.packed_metadata})
    if (!path->empty()) *path = "somewhere";
  const DatasetConfig usual;
  data.path_to_cache = usual.path_to_cache;
  data.num_workers = usual.num_workers;
  data.num_dataset_builder_threads = usual.num_dataset_builder_threads;
  data.mmap_bin_files = usual.mmap_bin_files;
}

// A text of one rank on all of them.
std::string text_of(const ProcessGroup& world, int rank, const std::string& own) {
  int64_t size = static_cast<int64_t>(own.size());
  world.broadcast(Tensor::wrap(&size, {1}, DType::I64), rank).wait();
  std::string text = own;
  text.resize(static_cast<size_t>(size));
  world.broadcast(Tensor::wrap(text.data(), {size}, DType::U8), rank).wait();
  return text;
}

// `section.key is A at rank 0 and B at rank r`, for the first few keys that differ.
std::string differences(const std::string& section, const Json& first, const Json& other, int rank) {
  std::string text;
  int named = 0;
  for (const auto& [key, value] : first.as_object())
    if (const Json& there = other.at(key); !(there == value) && named++ < 3)
      text += fmt::format("{}{}.{} is {} at rank 0 and {} at rank {}", text.empty() ? "" : ", ", section, key,
                          value.dump(), there.dump(), rank);
  return named > 3 ? fmt::format("{}, and {} more", text, named - 3) : text;
}

}  // namespace

void require_same_settings(const Config& config, const ProcessGroup& world) {
  Config compared = config;
  compared.dist.flight_recorder_dump_path.clear();
  forget_places(compared.dataset);
  const Json settings = compared.to_json();
  const auto section = [&](size_t i) { return settings.at(std::string(kCommon[i])).dump(); };
  std::vector<uint64_t> own;
  for (size_t i = 0; i < kCommon.size(); ++i) own.push_back(hash_text(section(i)));
  const auto count = static_cast<int64_t>(own.size());
  std::vector<uint64_t> all(own.size() * static_cast<size_t>(world.size()));
  world
      .all_gather(Tensor::wrap(own.data(), {count}, DType::I64),
                  Tensor::wrap(all.data(), {count * world.size()}, DType::I64))
      .wait();
  for (size_t i = own.size(); i < all.size(); ++i) {
    const size_t which = i % own.size();
    if (all[i] == all[which]) continue;
    const auto rank = static_cast<int>(i / own.size());
    const Json first = Json::parse(text_of(world, 0, section(which)));
    const Json other = Json::parse(text_of(world, rank, section(which)));
    throw ConfigError(
        fmt::format("the processes were given different settings: {}; give all of them the same (where "
                    "--recompute-modules auto chooses, --recompute-memory-gib too: machines may differ)",
                    differences(std::string(kCommon[which]), first, other, rank)));
  }
}

}  // namespace megatron
