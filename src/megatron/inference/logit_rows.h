#pragma once

#include <optional>
#include <span>
#include <vector>

#include "megatron/autograd/rank_context.h"
#include "megatron/comm/process_group.h"
#include "megatron/inference/sampling.h"

namespace megatron {

// What a step has made of its rows.
struct StepOutput {
  Tensor logits;  // [rows, vocabulary]
  // int64 [rows], in host memory: the token that was drawn of each row once the stream is done, −1 where its
  // largest logit is not finite. Undefined: none was drawn yet.
  Tensor drawn = {};
};

// The rows of a step one after the other, for those who choose tokens by them. Logits are fetched some rows
// at a time, for prompts may want many; where nothing but the token matters, the device draws it.
class LogitRows {
 public:
  // `values` is memory that is kept from step to step.
  LogitRows(RankContext& ctx, const ProcessGroup& world, StepOutput output, std::vector<float>& values)
      : ctx_(ctx), world_(world), output_(std::move(output)), values_(values) {}

  void skip(int64_t rows);
  // The next row, valid until the one after it is asked for.
  std::span<float> next();
  // The token that `draw` takes of the next row, −1 where its largest logit is not finite; of a step that has
  // drawn already, by what it was given. Nothing, and the row is still the next one, where the device does
  // not draw.
  std::optional<int64_t> next_drawn(const DeviceDraw& draw);

 private:
  RankContext& ctx_;
  const ProcessGroup& world_;
  StepOutput output_;
  std::vector<float>& values_;
  std::vector<int64_t> drawn_;  // of all rows: the step's, or the largest
  bool asked_ = false;          // for them
  int64_t row_ = 0, first_ = 0, fetched_ = 0;
};

}  // namespace megatron
