#pragma once

#include <optional>
#include <span>
#include <vector>

#include "megatron/base/json.h"
#include "megatron/nn/batch.h"
#include "megatron/rl/rollout_bank.h"

namespace megatron::rl {

// A rollout as it is learned from. Vectors are of the tokens of its answer.
struct Sample {
  BankedRollout rollout;
  double advantage = 0;
  std::vector<double> old_log_probs;        // of the policy that the collection began with
  std::vector<double> reference_log_probs;  // empty: there is no reference
  std::vector<double> sampling_weights;     // what corrects for an engine that rounds otherwise; empty: 1

  int64_t answer_tokens() const { return std::ssize(rollout.tokens) - rollout.prompt_tokens; }

  Json to_json() const;
  static Sample from_json(const Json& json);
};

// The samples of groups, with their advantages.
std::vector<Sample> samples_of(std::span<const BankedGroup> groups);

// exp(old − engine's) of each token of the answer, at most `highest`.
std::vector<double> sampling_weights(const Sample& sample, std::optional<double> highest);

// How samples become micro-batches.
struct RowLayout {
  int64_t length = 0;      // tokens of a row
  int64_t rows = 1;        // of a micro-batch
  int64_t max_packed = 0;  // samples in a row at most; 0: each has a row to itself
  int64_t pad = 0;         // the token that fills rows
};

// Which of `samples` go into each row, in order: the first row with room for it takes the next one.
std::vector<std::vector<int64_t>> rows_of_samples(std::span<const Sample> samples, const RowLayout& layout);

// A micro-batch of some rows. Tokens of answers are predicted, with the values that GRPO reads.
Batch batch_of_rows(std::span<const Sample> samples, std::span<const std::vector<int64_t>> rows,
                    const RowLayout& layout);

}  // namespace megatron::rl
