#pragma once

#include <string_view>
#include <vector>

#include "megatron/tokenizers/aligned_text.h"

namespace megatron::tokenizers {

enum class NormalForm { nfc, nfd, nfkc, nfkd };

// The characters of a text in a normal form, each with what it replaces.
std::vector<TextChange> normal_form(std::string_view text, NormalForm form);

// Whether a form surely leaves a text as it is.
bool surely_normal(std::string_view text, NormalForm form);

}  // namespace megatron::tokenizers
