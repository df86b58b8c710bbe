#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "megatron/tensor/tensor.h"

namespace megatron {

inline constexpr int64_t kIgnoredLabel = -100;

// In Batch::extra, what MicroBatch::recorded_tokens and recorded_log_probs are of all its tokens.
inline constexpr const char* kRecordedTokens = "recorded_tokens";
inline constexpr const char* kRecordedLogProbs = "recorded_log_probs";

// An image or video as patches: frames, rows and columns.
struct PatchGrid {
  int64_t frames = 1, rows = 1, columns = 1;

  int64_t patches() const { return frames * rows * columns; }
};

// A micro-batch on the host: `rows` rows of equally many tokens, end to end, packed or not. Every stage of a
// pipeline is given the same one, because shapes and the number of labels count on all of them.
struct Batch {
  std::vector<int64_t> ids, labels;  // [rows · length]; a negative label is not predicted
  std::vector<float> weights;        // of labels; empty: 1
  std::vector<int64_t> positions;    // empty: from 0 in every sequence
  std::vector<int64_t> lengths;      // of the sequences packed into the rows; empty: a row is a sequence
  int64_t rows = 1;
  int64_t first = 0;  // index of its first sample in the global batch: keys dropout
  // What an objective reads of the tokens beside their labels, such as the log-probabilities of another
  // policy: of each kind one for every token.
  std::vector<std::vector<double>> values;
  // Of BERT and T5: see masked_source.h. Of models with a vision tower: `pixels`, fp32, a patch in a row, and
  // `image_grids`, int64 [images, 3]: the PatchGrid of each, in the order of the text.
  std::map<std::string, Tensor> extra;

  int64_t length() const { return rows > 0 ? static_cast<int64_t>(ids.size()) / rows : 0; }
  double label_weight() const;                 // Σ of the weights of the labels that are predicted
  void check() const;                          // throws where its parts do not fit together
  std::vector<PatchGrid> image_grids() const;  // of extra; none where it has no images
};

// Micro-batches of `size` rows from rows of length + 1 tokens: each row is its own input and, shifted by one,
// its labels. A negative token is never an input, and ignored as a label. `lengths`: of each micro-batch's
// rows, where they differ. `documents`: of each row the lengths of what is packed into it; none: every row is
// one sequence. `first`: the index of the first row in the global batch.
std::vector<Batch> batches_of_tokens(std::span<const int64_t> tokens, int64_t size, int64_t length,
                                     std::span<const int64_t> lengths = {},
                                     std::span<const std::vector<int64_t>> documents = {}, int64_t first = 0);

}  // namespace megatron
