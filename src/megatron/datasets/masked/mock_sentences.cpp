#include "megatron/datasets/masked/mock_sentences.h"

#include <algorithm>
#include <numeric>

#include "megatron/base/error.h"

namespace megatron {
namespace {

constexpr int64_t kDocuments = 5000, kSentences = 4;
constexpr int32_t kShortest = 5, kLongest = 36;

}  // namespace

WordPieces mock_word_pieces(int64_t vocab_size, int64_t extra_ids) {
  const int64_t specials = 5 + extra_ids;
  require(vocab_size > specials + 1,
          "mock data: a vocabulary of {} has no room for words beside {} special tokens", vocab_size,
          specials);
  WordPieces pieces;
  pieces.ids.resize(static_cast<size_t>(vocab_size));
  std::iota(pieces.ids.begin(), pieces.ids.end(), int64_t{0});
  pieces.continuation.assign(pieces.ids.size(), 0);
  pieces.pad = 0;
  int64_t next = vocab_size - specials;
  for (int64_t* id : {&pieces.cls, &pieces.sep, &pieces.mask, &pieces.bos, &pieces.eos}) *id = next++;
  while (next < vocab_size) pieces.sentinels.push_back(next++);
  return pieces;
}

MockSentences::MockSentences(const WordPieces& vocabulary) {
  std::vector<int64_t> special = vocabulary.sentinels;
  special.insert(special.end(), {vocabulary.cls, vocabulary.sep, vocabulary.mask, vocabulary.bos,
                                 vocabulary.eos, vocabulary.pad});
  for (int64_t id : vocabulary.ids)
    if (std::find(special.begin(), special.end(), id) == special.end()) words_.push_back(id);
  require(!words_.empty(), "mock data: the vocabulary has no words");
  for (int64_t document = 0; document <= kDocuments; ++document) documents_.push_back(document * kSentences);
  for (int64_t sentence = 0; sentence < kDocuments * kSentences; ++sentence)
    lengths_.push_back(kShortest + static_cast<int32_t>(sentence * 7 % (kLongest - kShortest + 1)));
}

int64_t MockSentences::max_length() const { return kLongest; }

void MockSentences::read(int64_t sequence, int64_t offset, std::span<int64_t> out) const {
  require(sequence >= 0 && sequence < static_cast<int64_t>(lengths_.size()), "mock data: sentence {} of {}",
          sequence, lengths_.size());
  const int64_t end = offset + static_cast<int64_t>(out.size());
  require(offset >= 0 && end <= lengths_[static_cast<size_t>(sequence)],
          "mock data: tokens {} to {} of a sentence of {}", offset, end,
          lengths_[static_cast<size_t>(sequence)]);
  for (int64_t& word : out)
    word = words_[static_cast<size_t>((sequence * 13 + offset++) % static_cast<int64_t>(words_.size()))];
}

}  // namespace megatron
