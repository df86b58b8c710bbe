#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "megatron/nn/batch.h"
#include "megatron/parallel/data/shares.h"

namespace megatron {

// Which micro-batches are wanted.
struct StepRequest {
  int64_t iteration = 0;          // from 0
  int64_t consumed = 0;           // samples of the iterations before
  std::span<const Share> shares;  // of one replica, in this iteration's global batch
  int64_t samples = 0;            // of the whole global batch, where it is known: lets a source read ahead
};

// Where training gets its micro-batches. A source has no state: what it gives depends on the request alone,
// so that resuming, making gradients again and reading ahead need nothing of it. Safe to share between
// threads.
class BatchSource {
 public:
  virtual ~BatchSource() = default;
  virtual std::vector<Batch> step(const StepRequest& request) const = 0;
  // The same without a copy, where the source keeps what it has made.
  virtual std::shared_ptr<const std::vector<Batch>> shared_step(const StepRequest& request) const {
    return std::make_shared<const std::vector<Batch>>(step(request));
  }
  virtual int64_t length() const = 0;             // tokens of a row
  virtual int64_t samples() const { return -1; }  // -1: endless
};

// A sample of length + 1 tokens: input and, shifted by one, labels. `index` is its place in the global batch
// of the iteration, before which `consumed` samples came.
using TokenRow = std::function<std::vector<int64_t>(int64_t iteration, int64_t consumed, int64_t index)>;
std::shared_ptr<const BatchSource> token_source(int64_t length, int64_t samples, TokenRow row);

}  // namespace megatron
