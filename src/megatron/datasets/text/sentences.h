#pragma once

#include <string_view>
#include <vector>

namespace megatron {

// Cuts text into sentences by rules: behind . ? ! … and their closing quotes and brackets, where white space
// and something that may begin a sentence follow; not behind abbreviations, initials and numbers of lists.
// Full-width marks of Chinese and Japanese need no space. White space between sentences is dropped, or stays
// with the sentence before it where `keep_newlines` is set.
std::vector<std::string_view> split_sentences(std::string_view text, bool keep_newlines = false);

}  // namespace megatron
