#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "megatron/datasets/random/numpy_random.h"

namespace megatron {

// What masking needs to know of a WordPiece vocabulary.
struct WordPieces {
  std::vector<int64_t> ids;           // every id, ascending
  std::vector<uint8_t> continuation;  // by id: whether the piece begins with "##"
  int64_t cls = -1, sep = -1, mask = -1, bos = -1, eos = -1, pad = -1;
  std::vector<int64_t> sentinels;  // T5's, in the order of their use
};

struct MaskingOptions {
  double probability = 0.15;
  int64_t max_ngram = 3;
  bool full_word = true;
  bool permutation = false;
  bool longer_ngrams = false;
  bool geometric = false;
};

// A run of words that was masked together.
struct MaskedSpan {
  std::vector<int64_t> positions;  // ascending
  std::vector<int64_t> labels;     // the tokens that stood there
};

struct MaskedText {
  std::vector<int64_t> tokens;
  std::vector<MaskedSpan> spans;                         // by first position
  std::vector<std::pair<int64_t, int64_t>> permutation;  // (position, token before) of permuted ones
};

// Chooses n-grams of whole words and masks them, draw for draw as Megatron-LM. `replace` gives the token that
// takes a masked one's place. `target` is the length that the sample aimed for. `permutation_random` is read
// where the options permute: upstream draws the n-gram sizes of that part from NumPy's global generator.
MaskedText mask_words(std::vector<int64_t> tokens, int64_t target, const WordPieces& vocabulary,
                      const MaskingOptions& options, RandomState& random,
                      const std::function<int64_t(int64_t token, RandomState&)>& replace,
                      RandomState* permutation_random);

}  // namespace megatron
