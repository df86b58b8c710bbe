#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "megatron/base/json.h"
#include "megatron/datasets/gpt/split.h"
#include "megatron/datasets/index/index_array.h"
#include "megatron/datasets/index/index_cache.h"

namespace megatron {

// Datasets that are read side by side. Without weights, each is read once and counts by its size.
struct Blend {
  std::vector<std::string> prefixes;
  std::optional<std::vector<double>> weights;
};

// "30 a 70 b" or "a b c", as --data-path has it; none of an empty list.
std::optional<Blend> parse_blend(std::span<const std::string> words);
// The words of --data-path in a file (--data-args-path), and those of each split in a JSON file
// (--per-split-data-args-path): {"train": [weights and prefixes], "valid": null, …}.
std::vector<std::string> read_blend_words(const std::string& path);
std::array<std::vector<std::string>, 3> read_split_words(const std::string& path);

// How many samples a dataset of this normalised weight gives to `samples`, with a surplus where its own order
// needs one: ceil(ceil(samples * weight) * (1 + surplus)).
int64_t blend_share(int64_t samples, double weight, double surplus = 0);

// Which dataset and which of its samples each sample of a blend is.
struct BlendIndex {
  IndexArray datasets;  // int16
  IndexArray samples;   // int64, in the dataset
};

// The blend of `size` samples that follows the weights most closely; ties go to the first dataset.
BlendIndex build_blend_index(std::span<const double> weights, int64_t size, const IndexCache& cache);
// Every sample of each dataset once, spread by size.
BlendIndex build_exhaustive_index(std::span<const int64_t> sizes, const IndexCache& cache);

// A blend as its description names it. Without a size it is exhaustive, and the weights are sizes.
struct BlendPlan {
  std::vector<double> weights;
  std::vector<int64_t> sizes;  // of the datasets
  std::optional<int64_t> size;
};
Json describe_blend(const BlendPlan& plan, std::vector<Json> datasets, Split split);
// Reads the cached index, or builds and caches it. An Error names a dataset that has too few samples.
BlendIndex load_or_build_blend_index(const BlendPlan& plan, const IndexCache& cache);

}  // namespace megatron
