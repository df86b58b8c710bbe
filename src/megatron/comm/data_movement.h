#pragma once

#include <span>

#include "megatron/comm/backend.h"

namespace megatron {

// Copies and reduces memory that one process can reach: the host's at once, a GPU's in the order of a stream.
class Mover {
 public:
  virtual ~Mover() = default;
  virtual void copy(void* target, const void* source, size_t bytes) const = 0;
  // outputs[*][0, n) = reduction of inputs[*][0, n) in their order; an input may be an output.
  virtual void reduce(DType dtype, ReduceOp op, std::span<const void* const> inputs,
                      std::span<void* const> outputs, int64_t n) const = 0;
};

class HostMover final : public Mover {
 public:
  void copy(void* target, const void* source, size_t bytes) const override;
  void reduce(DType dtype, ReduceOp op, std::span<const void* const> inputs, std::span<void* const> outputs,
              int64_t n) const override;
};

// What a collective does to memory, once every rank's request is known. The work falls into one part per rank
// of the group; parts touch different memory and may run at the same time. Sums run in rank order, whoever
// computes them, so results are reproducible.
void run_part(std::span<const CommRequest> requests, int part, const Mover& mover);

// Part i of n elements that all ranks reduce together, in whole cache lines.
struct ElementRange {
  int64_t begin, end;
};
ElementRange share_of(int64_t n, int part, int parts);

size_t bytes_moved(std::span<const CommRequest> requests);  // by all parts together

void copy_message(const CommRequest& send, const CommRequest& recv, const Mover& mover);

}  // namespace megatron
