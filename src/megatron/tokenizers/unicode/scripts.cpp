#include "megatron/tokenizers/unicode/scripts.h"

#include "megatron/tokenizers/unicode/packed_table.h"

namespace megatron::tokenizers {
namespace {

#include "megatron/tokenizers/unicode/script_data.inc"

}  // namespace

uint8_t script_of(char32_t point) {
  static const TwoStageTable table{kScriptRuns};  // unpacked when first asked for
  return point < kPoints ? table[point] : 0;
}

}  // namespace megatron::tokenizers
