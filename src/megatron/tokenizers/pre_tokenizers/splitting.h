#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "megatron/tokenizers/pre_tokenizers/pre_tokenizer.h"

namespace megatron::tokenizers {

// What becomes of the matches of a pattern.
enum class SplitBehavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

SplitBehavior parse_split_behavior(std::string_view name);

// The parts of [0, size) that matches cut it into; `invert` swaps matches and what lies between.
std::vector<ByteRange> split_parts(std::span<const ByteRange> matches, size_t size, SplitBehavior behavior,
                                   bool invert);

// Cuts each word by the matches that `find` gives for its text.
template <class Find>
void split_words(Section& section, SplitBehavior behavior, bool invert, Find find) {
  std::vector<ByteRange> words;
  for (const ByteRange& word : section.words) {
    const std::vector<ByteRange> matches = find(section.text.view(word));
    for (const ByteRange& part : split_parts(matches, word.end - word.begin, behavior, invert))
      if (part.begin < part.end) words.push_back({word.begin + part.begin, word.begin + part.end});
  }
  section.words = std::move(words);
}

// Puts changed words in place of all words: `change` gives each as a text of its own.
template <class Change>
void change_words(Section& section, Change change) {
  if (section.words.size() == 1 &&
      section.words[0] == ByteRange{0, static_cast<uint32_t>(section.text.text().size())}) {
    change(section.text);
    section.words[0].end = static_cast<uint32_t>(section.text.text().size());
    if (section.words[0].end == 0) section.words.clear();
    return;
  }
  AlignedText all("", section.text.origin(), section.text.tracked());
  std::vector<ByteRange> words;
  for (const ByteRange& word : section.words) {
    AlignedText part = section.text.slice(word);
    change(part);
    const auto begin = static_cast<uint32_t>(all.text().size());
    const auto size = static_cast<uint32_t>(part.text().size());
    all.append(part, {0, size});
    if (size > 0) words.push_back({begin, begin + size});
  }
  section.text = std::move(all);
  section.words = std::move(words);
}

}  // namespace megatron::tokenizers
