#pragma once

#include <optional>

#include "megatron/cli/command.h"

namespace megatron {

// With --ckpt-convert-format and --ckpt-convert-save the checkpoint of --load is written in another layout,
// to a folder of that name under the latter, and no step is taken. The exit code; nothing without the two
// flags.
std::optional<int> convert_layout(Invocation& invocation);

}  // namespace megatron
