#pragma once

#include <cstddef>
#include <cstdint>

namespace megatron::chat {

// What one rendering may use at most. A template that wants more is stopped with a TemplateError.
struct ChatLimits {
  int64_t steps = 20'000'000;               // evaluated nodes, and bytes handled / 16
  int depth = 1200;                         // nested evaluations: macros, recursive loops, brackets
  size_t memory_bytes = size_t{512} << 20;  // alive at once in values of the template
  size_t output_bytes = size_t{128} << 20;  // of the rendered text
  size_t template_bytes = size_t{4} << 20;  // of the template's source
};

}  // namespace megatron::chat
