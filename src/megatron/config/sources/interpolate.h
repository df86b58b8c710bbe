#pragma once

#include "megatron/config/sources/merge.h"

namespace megatron {

// ${a.b} in texts becomes the value of that setting. What cannot be found is a problem.
void interpolate(Merged& merged);

}  // namespace megatron
