#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace megatron {

// Guesses how a text goes on from what followed its last tokens when they stood in it before: the longest of
// the last four, three or two tokens that did. Where the guess reaches the text's end, it goes on from
// itself.
class NgramDraft {
 public:
  // At most `count` tokens; none where nothing is known. `text` is that of the call before, or longer.
  std::vector<int64_t> propose(std::span<const int64_t> text, int64_t count);

 private:
  static constexpr int64_t kShortest = 2, kLongest = 4;
  void learn(std::span<const int64_t> text);

  // By a hash of the tokens: where they last ended. Texts are compared before it is believed.
  std::unordered_map<uint64_t, int64_t> ends_;
  int64_t learnt_ = 0;  // tokens of the text up to which ends_ has entries
};

}  // namespace megatron
