#include "megatron/datasets/gpt/blend.h"

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <numeric>
#include <sstream>

#include "megatron/base/error.h"
#include "megatron/base/text_file.h"

namespace megatron {
namespace {

std::string_view strip(std::string_view text) {
  constexpr std::string_view blanks = " \t\n\r\v\f";
  const size_t begin = text.find_first_not_of(blanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(blanks) - begin + 1);
}

// What Python's float() takes, but for digits joined by underscores.
std::optional<double> parse_weight(std::string_view text) {
  const std::string word(strip(text));
  if (word.empty() || word.find_first_of("xXpP") != std::string::npos) return std::nullopt;
  char* end = nullptr;
  const double value = std::strtod(word.c_str(), &end);
  return end == word.c_str() + word.size() ? std::optional(value) : std::nullopt;
}

struct IndexBuilders {
  IndexArrayBuilder datasets, samples;
  std::span<int16_t> dataset = datasets.values<int16_t>();
  std::span<int64_t> sample = samples.values<int64_t>();

  IndexBuilders(int64_t size, const IndexCache& cache)
      : datasets(cache.path("dataset_index.npy"), IndexType::i2, {size}),
        samples(cache.path("dataset_sample_index.npy"), IndexType::i8, {size}) {}
  BlendIndex finish() { return {datasets.finish(), samples.finish()}; }
};

void require_count(size_t datasets) {
  require(datasets > 0 && datasets <= static_cast<size_t>(std::numeric_limits<int16_t>::max()),
          "blend: {} datasets, expected 1 to 32767", datasets);
}

std::optional<BlendIndex> open(const IndexCache& cache, int64_t size) {
  if (!cache) return std::nullopt;
  for (const char* file : {"description.txt", "dataset_index.npy", "dataset_sample_index.npy"})
    if (!std::filesystem::exists(cache.path(file))) return std::nullopt;
  try {
    BlendIndex index{open_npy(cache.path("dataset_index.npy")),
                     open_npy(cache.path("dataset_sample_index.npy"))};
    if (index.datasets.size() == size && index.samples.size() == size) return index;
  } catch (const Error&) {
    // Damaged: built again.
  }
  return std::nullopt;
}

}  // namespace

std::vector<std::string> read_blend_words(const std::string& path) {
  std::istringstream text(read_text_file(path));
  std::vector<std::string> words;
  for (std::string word; text >> word;) words.push_back(word);
  return words;
}

std::array<std::vector<std::string>, 3> read_split_words(const std::string& path) {
  const Json file = Json::read(path);
  std::array<std::vector<std::string>, 3> words;
  for (Split split : kSplits) {
    const Json* list = file.find(name_of(split));
    if (!list || list->is_null()) continue;
    for (const Json& word : list->as_array())
      words[static_cast<size_t>(split)].push_back(word.is_string() ? word.as_string() : word.dump());
  }
  return words;
}

std::optional<Blend> parse_blend(std::span<const std::string> words) {
  if (words.empty()) return std::nullopt;
  Blend blend;
  std::vector<double> weights;
  if (words.size() % 2 == 0) {
    for (size_t i = 0; i < words.size(); i += 2)
      if (const std::optional<double> weight = parse_weight(words[i])) weights.push_back(*weight);
  }
  const bool weighted = words.size() % 2 == 0 && weights.size() == words.size() / 2;
  for (size_t i = weighted ? 1 : 0; i < words.size(); i += weighted ? 2 : 1)
    blend.prefixes.emplace_back(strip(words[i]));
  if (!weighted) return blend;
  double sum = 0;
  for (double weight : weights) {
    if (!std::isfinite(weight) || weight < 0)
      throw ConfigError(fmt::format("--data-path: the weight {} is not a number of at least 0", weight));
    sum += weight;
  }
  if (!(sum > 0)) throw ConfigError("--data-path: all weights are 0; give one that is larger");
  blend.weights = std::move(weights);
  return blend;
}

int64_t blend_share(int64_t samples, double weight, double surplus) {
  const double target = std::ceil(static_cast<double>(samples) * weight);
  return static_cast<int64_t>(std::ceil(target * (1 + surplus)));
}

BlendIndex build_blend_index(std::span<const double> weights, int64_t size, const IndexCache& cache) {
  require_count(weights.size());
  IndexBuilders index(size, cache);
  std::vector<int64_t> used(weights.size(), 0);
  for (int64_t n = 0; n < size; ++n) {
    const double x = std::max(static_cast<double>(n), 1.0);
    size_t best = 0;
    double largest = weights[0] * x - static_cast<double>(used[0]);
    for (size_t i = 1; i < weights.size(); ++i) {
      const double error = weights[i] * x - static_cast<double>(used[i]);
      if (error > largest) largest = error, best = i;
    }
    index.dataset[static_cast<size_t>(n)] = static_cast<int16_t>(best);
    index.sample[static_cast<size_t>(n)] = used[best]++;
  }
  return index.finish();
}

BlendIndex build_exhaustive_index(std::span<const int64_t> sizes, const IndexCache& cache) {
  require_count(sizes.size());
  const int64_t total = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  IndexBuilders index(total, cache);
  std::vector<int64_t> used(sizes.size(), 0);
  std::vector<size_t> open;
  for (size_t i = 0; i < sizes.size(); ++i)
    if (sizes[i] > 0) open.push_back(i);
  for (int64_t n = 0; n < total; ++n) {
    const double x = std::max(static_cast<double>(n), 1.0);
    size_t best = 0;
    double largest = -std::numeric_limits<double>::infinity();
    for (size_t k = 0; k < open.size(); ++k) {
      const size_t i = open[k];
      const double weight = static_cast<double>(sizes[i]) / static_cast<double>(total);
      const double error = weight * x - static_cast<double>(used[i]);
      if (error > largest) largest = error, best = k;
    }
    const size_t chosen = open[best];
    index.dataset[static_cast<size_t>(n)] = static_cast<int16_t>(chosen);
    index.sample[static_cast<size_t>(n)] = used[chosen]++;
    if (used[chosen] == sizes[chosen]) open.erase(open.begin() + static_cast<int64_t>(best));
  }
  return index.finish();
}

Json describe_blend(const BlendPlan& plan, std::vector<Json> datasets, Split split) {
  Json json = Json::object();
  json["class"] = "BlendedDataset";
  json["datasets"] = Json(std::move(datasets));
  json["split"] = name_of(split);
  Json weights = Json::array();
  if (plan.size) {
    for (double weight : plan.weights) weights.push_back(weight);
  } else {
    for (int64_t size : plan.sizes) weights.push_back(size);
  }
  json["weights"] = std::move(weights);
  json["size"] = plan.size ? Json(*plan.size) : Json();
  return json;
}

BlendIndex load_or_build_blend_index(const BlendPlan& plan, const IndexCache& cache) {
  const int64_t size =
      plan.size ? *plan.size : std::accumulate(plan.sizes.begin(), plan.sizes.end(), int64_t{0});
  Json facts = Json::object();
  facts["sizes"] = Json::array();
  for (int64_t own : plan.sizes) facts["sizes"].push_back(own);
  const std::optional<BlendIndex> cached = open(cache, size);
  const IndexCache::Facts known = cached ? cache.compare(facts) : IndexCache::Facts::different;
  if (known == IndexCache::Facts::same) return *cached;
  auto check = [&](const BlendIndex& index) {
    for (int64_t i = 0; i < size; ++i) {
      const int64_t dataset = index.datasets[i], sample = index.samples[i];
      require(dataset >= 0 && dataset < static_cast<int64_t>(plan.sizes.size()),
              "blend: sample {} is of dataset {} of {}; delete its cached index", i, dataset,
              plan.sizes.size());
      require(sample >= 0 && sample < plan.sizes[static_cast<size_t>(dataset)],
              "blend: sample {} of dataset {} is wanted, it has {}; raise --mid-level-dataset-surplus",
              sample, dataset, plan.sizes[static_cast<size_t>(dataset)]);
    }
  };
  if (known == IndexCache::Facts::absent) {
    check(*cached);
    cache.remember(facts);
    return *cached;
  }
  cache.prepare();
  const BlendIndex index =
      plan.size ? build_blend_index(plan.weights, size, cache) : build_exhaustive_index(plan.sizes, cache);
  check(index);
  cache.publish(facts);
  return index;
}

}  // namespace megatron
