#pragma once

namespace megatron {

// Bytes of memory that this process may use at most: the machine's, or what its container is given of them.
double system_memory();

}  // namespace megatron
