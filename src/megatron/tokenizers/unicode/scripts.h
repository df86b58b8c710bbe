#pragma once

#include <cstdint>

namespace megatron::tokenizers {

// The number of a character's script as Hugging Face's UnicodeScripts tells them apart; 0: it goes with any.
uint8_t script_of(char32_t point);

}  // namespace megatron::tokenizers
