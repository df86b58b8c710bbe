#pragma once

#include <optional>
#include <span>
#include <vector>

#include "megatron/autograd/rank_context.h"
#include "megatron/comm/process_group.h"

namespace megatron {

// What a step has made of its rows.
struct StepOutput {
  Tensor logits;  // [rows, vocabulary]
  // int64 [rows], in host memory: where the largest logit of each row stands once the stream is done, −1
  // where it is not finite. Undefined: nobody has looked yet.
  Tensor largest = {};
};

// The rows of a step one after the other, for those who choose tokens by them. Logits are fetched some rows
// at a time, for prompts may want many; where the largest one is all that matters, the device looks for it.
class LogitRows {
 public:
  // `values` is memory that is kept from step to step.
  LogitRows(RankContext& ctx, const ProcessGroup& world, StepOutput output, std::vector<float>& values)
      : ctx_(ctx), world_(world), output_(std::move(output)), values_(values) {}

  void skip(int64_t rows);
  // The next row, valid until the one after it is asked for.
  std::span<float> next();
  // Where the largest logit of the next row stands, −1 where it is not finite. Nothing, and the row is still
  // the next one, where the device does not tell.
  std::optional<int64_t> next_largest();

 private:
  RankContext& ctx_;
  const ProcessGroup& world_;
  StepOutput output_;
  std::vector<float>& values_;
  std::vector<int64_t> largest_;
  bool asked_ = false;  // for the largest
  int64_t row_ = 0, first_ = 0, fetched_ = 0;
};

}  // namespace megatron
