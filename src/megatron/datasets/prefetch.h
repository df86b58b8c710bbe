#pragma once

#include "megatron/datasets/batch_source.h"

namespace megatron {

// Reads ahead: `threads` threads make the next `depth` steps of every replica that asks, while the ranks
// compute. Ranks of one replica share what was made. What is given does not depend on threads or depth: a
// step that was not foreseen (a batch of another size, say) is made when it is asked for, and a fault is
// thrown to whoever asks for that step. Threads sleep while there is nothing to do.
std::shared_ptr<const BatchSource> prefetched(std::shared_ptr<const BatchSource> source, int depth,
                                              int threads = 1);

}  // namespace megatron
