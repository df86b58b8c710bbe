#include "megatron/rl/samples.h"

#include <algorithm>
#include <cmath>

#include "megatron/base/error.h"
#include "megatron/models/objectives/grpo_objective.h"
#include "megatron/rl/advantages.h"

namespace megatron::rl {
namespace {

template <class T>
Json list_of(const std::vector<T>& values) {
  Json list = Json::array();
  for (const T& value : values) list.push_back(value);
  return list;
}

std::vector<double> doubles_of(const Json& list) {
  std::vector<double> values;
  for (const Json& value : list.as_array()) values.push_back(value.as_double());
  return values;
}

}  // namespace

Json Sample::to_json() const {
  Json json = Json::object();
  json["tokens"] = list_of(rollout.tokens);
  json["prompt_tokens"] = rollout.prompt_tokens;
  json["advantage"] = advantage;
  json["old"] = list_of(old_log_probs);
  json["reference"] = list_of(reference_log_probs);
  json["weights"] = list_of(sampling_weights);
  return json;
}

Sample Sample::from_json(const Json& json) {
  Sample sample;
  for (const Json& token : json.at("tokens").as_array()) sample.rollout.tokens.push_back(token.as_int());
  sample.rollout.prompt_tokens = json.at("prompt_tokens").as_int();
  sample.advantage = json.at("advantage").as_double();
  sample.old_log_probs = doubles_of(json.at("old"));
  sample.reference_log_probs = doubles_of(json.at("reference"));
  sample.sampling_weights = doubles_of(json.at("weights"));
  return sample;
}

std::vector<Sample> samples_of(std::span<const BankedGroup> groups) {
  std::vector<Sample> samples;
  for (const BankedGroup& group : groups) {
    std::vector<double> rewards;
    std::vector<int64_t> tokens;
    const size_t first = samples.size();
    for (const BankedRollout& rollout : group.rollouts) {
      samples.push_back({.rollout = rollout});
      rewards.push_back(rollout.reward);
      tokens.push_back(samples.back().answer_tokens());
    }
    const std::vector<double> advantages = group_advantages(rewards, tokens);
    for (size_t i = 0; i < advantages.size(); ++i) samples[first + i].advantage = advantages[i];
  }
  return samples;
}

std::vector<double> sampling_weights(const Sample& sample, std::optional<double> highest) {
  std::vector<double> weights;
  for (size_t i = 0; i < sample.old_log_probs.size(); ++i) {
    const double weight =
        std::exp(sample.old_log_probs[i] - static_cast<double>(sample.rollout.log_probs.at(i)));
    weights.push_back(highest ? std::min(weight, *highest) : weight);
  }
  return weights;
}

std::vector<std::vector<int64_t>> rows_of_samples(std::span<const Sample> samples, const RowLayout& layout) {
  std::vector<std::vector<int64_t>> rows;
  std::vector<int64_t> used;
  for (int64_t i = 0; i < std::ssize(samples); ++i) {
    const int64_t tokens = std::ssize(samples[static_cast<size_t>(i)].rollout.tokens);
    require(tokens <= layout.length, "rollouts: one has {} tokens, but rows have {}", tokens, layout.length);
    size_t row = 0;
    while (row < rows.size() && (std::ssize(rows[row]) >= std::max<int64_t>(1, layout.max_packed) ||
                                 used[row] + tokens > layout.length))
      ++row;
    if (row == rows.size()) rows.emplace_back(), used.push_back(0);
    rows[row].push_back(i);
    used[row] += tokens;
  }
  return rows;
}

Batch batch_of_rows(std::span<const Sample> samples, std::span<const std::vector<int64_t>> rows,
                    const RowLayout& layout) {
  Batch batch;
  batch.rows = std::ssize(rows);
  const auto tokens = static_cast<size_t>(batch.rows * layout.length);
  batch.ids.assign(tokens, layout.pad);
  batch.labels.assign(tokens, kIgnoredLabel);
  batch.values.assign(GrpoValues::count, std::vector<double>(tokens));
  size_t at = 0;
  for (const std::vector<int64_t>& row : rows) {
    const size_t end = at + static_cast<size_t>(layout.length);
    for (const int64_t index : row) {
      const Sample& sample = samples[static_cast<size_t>(index)];
      const std::vector<int64_t>& text = sample.rollout.tokens;
      std::copy(text.begin(), text.end(), batch.ids.begin() + static_cast<int64_t>(at));
      const auto prompt = static_cast<size_t>(sample.rollout.prompt_tokens);
      for (size_t token = prompt; token < text.size(); ++token) {
        const size_t label = at + token - 1, own = token - prompt;  // which predicts it
        batch.labels[label] = text[token];
        const auto set = [&](GrpoValues::Row which, const std::vector<double>& values, double otherwise) {
          batch.values[which][label] = values.empty() ? otherwise : values.at(own);
        };
        set(GrpoValues::advantage, {}, sample.advantage);
        set(GrpoValues::old_log_prob, sample.old_log_probs, 0);
        set(GrpoValues::reference_log_prob, sample.reference_log_probs, 0);
        set(GrpoValues::sampling_weight, sample.sampling_weights, 1);
      }
      at += text.size();
      if (layout.max_packed > 0) batch.lengths.push_back(std::ssize(text));
    }
    if (layout.max_packed > 0 && at < end) batch.lengths.push_back(static_cast<int64_t>(end - at));
    at = end;
  }
  return batch;
}

}  // namespace megatron::rl
