#pragma once

#include <algorithm>
#include <memory>

#include "megatron/base/error.h"
#include "megatron/datasets/gpt/blend.h"
#include "megatron/datasets/gpt/gpt_dataset.h"
#include "megatron/datasets/random/numpy_math.h"

namespace megatron {

// One split of the data: a dataset, or a blend of several of the same kind.
template <class Dataset>
class BlendedDataset {
 public:
  struct Place {
    int64_t dataset, sample;
  };

  explicit BlendedDataset(std::shared_ptr<const Dataset> single) : datasets_{std::move(single)} {}
  BlendedDataset(std::vector<std::shared_ptr<const Dataset>> datasets, BlendPlan plan, Json description,
                 BlendIndex index)
      : datasets_(std::move(datasets)),
        plan_(std::move(plan)),
        description_(std::move(description)),
        index_(std::move(index)),
        blended_(true) {}

  bool blended() const { return blended_; }
  int64_t size() const { return blended_ ? index_.datasets.size() : datasets_[0]->size(); }
  const std::vector<std::shared_ptr<const Dataset>>& datasets() const { return datasets_; }
  const BlendPlan& plan() const { return plan_; }
  const BlendIndex& index() const { return index_; }
  const Json& description() const { return blended_ ? description_ : datasets_[0]->description(); }

  // Where sample i is found.
  Place place(int64_t i) const {
    if (!blended_) return {0, i};
    require(i >= 0 && i < size(), "blend: sample {} of {}", i, size());
    const int64_t dataset = index_.datasets[i];
    require(dataset >= 0 && dataset < static_cast<int64_t>(datasets_.size()),
            "blend: sample {} is of dataset {} of {}; delete its cached index", i, dataset, datasets_.size());
    return {dataset, index_.samples[i]};
  }
  auto sample(int64_t i) const {
    const Place at = place(i);
    return datasets_[static_cast<size_t>(at.dataset)]->sample(at.sample);
  }

 private:
  std::vector<std::shared_ptr<const Dataset>> datasets_;
  BlendPlan plan_;
  Json description_;
  BlendIndex index_;
  bool blended_ = false;
};

// Where the data of the splits comes from: one blend that is split, or a blend for each.
struct DataSource {
  std::optional<Blend> blend;
  std::array<std::optional<Blend>, 3> per_split;
  std::optional<SplitMatrix> matrix;  // with `blend`
  double surplus = 0.005;
  bool cache = true;
  std::string cache_path;  // of blends; empty: they are not cached, as upstream
};

// Samples wanted of each split; none: one epoch.
using SplitSizes = std::array<std::optional<int64_t>, 3>;

// Builds a dataset by make(prefix, split, ends, samples) for each prefix and split that has data, and blends
// them as Megatron-LM does. Splits without data are absent, also those of which make gives null for every
// prefix.
template <class Dataset, class Make>
std::array<std::optional<BlendedDataset<Dataset>>, 3> build_splits(const DataSource& source,
                                                                   const SplitSizes& sizes, Make make) {
  std::array<std::optional<BlendedDataset<Dataset>>, 3> result;
  for (Split split : kSplits) {
    const auto s = static_cast<size_t>(split);
    const bool own = !source.blend;
    const std::optional<Blend>& blend = own ? source.per_split[s] : source.blend;
    if (!blend || (!own && !(*source.matrix)[s])) continue;
    const std::array<double, 2> ends = own ? std::array{0.0, 1.0} : *(*source.matrix)[s];
    if (blend->prefixes.size() == 1 && (own || !blend->weights)) {
      if (auto single = make(blend->prefixes[0], split, ends, sizes[s])) result[s].emplace(std::move(single));
      continue;
    }
    BlendPlan plan;
    if (blend->weights) {
      if (!sizes[s])
        throw ConfigError(fmt::format(
            "blend of the {} split: its weights share out a number of samples, and each is wanted "
            "once; leave the weights out, or --full-validation",
            name_of(split)));
      plan.weights = normalize_weights(*blend->weights);
      plan.size = 0;
      for (double weight : plan.weights) *plan.size += blend_share(*sizes[s], weight);
    }
    std::vector<std::shared_ptr<const Dataset>> datasets;
    std::vector<Json> descriptions;
    for (size_t i = 0; i < blend->prefixes.size(); ++i) {
      std::optional<int64_t> samples;
      if (blend->weights) samples = blend_share(*sizes[s], plan.weights[i], source.surplus);
      datasets.push_back(make(blend->prefixes[i], split, ends, samples));
    }
    if (std::all_of(datasets.begin(), datasets.end(), [](const auto& each) { return !each; })) continue;
    if (const auto empty = std::find(datasets.begin(), datasets.end(), nullptr); empty != datasets.end())
      throw ConfigError(
          fmt::format("{}: the {} split has no documents, those of other prefixes have; leave it out of the "
                      "blend, or give --split otherwise",
                      blend->prefixes[static_cast<size_t>(empty - datasets.begin())], name_of(split)));
    for (const auto& dataset : datasets) {
      descriptions.push_back(dataset->description());
      plan.sizes.push_back(dataset->size());
    }
    if (!blend->weights && sizes[s]) {
      const std::vector<double> counts(plan.sizes.begin(), plan.sizes.end());
      plan.weights = normalize_weights(counts);
      int64_t total = 0;
      for (int64_t size : plan.sizes) total += size;
      plan.size = std::min(*sizes[s], total);
    }
    Json description = describe_blend(plan, std::move(descriptions), split);
    IndexCache cache;
    if (source.cache && !source.cache_path.empty())
      cache = IndexCache(source.cache_path, description, fmt::format("BlendedDataset-{}", name_of(split)));
    BlendIndex index = load_or_build_blend_index(plan, cache);
    result[s].emplace(std::move(datasets), std::move(plan), std::move(description), std::move(index));
  }
  return result;
}

}  // namespace megatron
