#pragma once

#include <string>
#include <string_view>

namespace megatron {

// Help as a terminal of `columns` shows it whole: paragraphs are filled, the text beside an option goes on
// below itself. A word that is too long for a line keeps one of its own.
std::string fill_help(std::string_view text, size_t columns = 80);

}  // namespace megatron
