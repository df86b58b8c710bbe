#pragma once

#include <span>

#include "megatron/comm/backend.h"

namespace megatron {

// What a collective does to memory that one process can reach, once every rank's request is known. The work
// falls into one part per rank of the group; parts touch different memory and may run at the same time. Sums
// run in rank order, whoever computes them, so results are reproducible.
void run_part(std::span<const CommRequest> requests, int part);

size_t bytes_moved(std::span<const CommRequest> requests);  // by all parts together

void copy_message(const CommRequest& send, const CommRequest& recv);

}  // namespace megatron
