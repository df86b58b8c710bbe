#pragma once

#include <functional>

#include "megatron/cli/bench/bench_ceilings.h"

namespace megatron {

// An op with its operands, ready to be run again and again.
struct BenchOp {
  std::vector<Tensor> inputs;  // those whose gradients the backward pass computes
  std::function<std::vector<Tensor>(RankContext&, std::span<const Tensor> inputs)> run;
  bool has_backward = true;
  // Where the op is GEMMs and little else: what the library computes in its place.
  std::vector<LibraryGemm> forward_gemms, backward_gemms;
};

struct BenchCase {
  std::string op, shape;
  DType dtype;
  std::function<BenchOp(RankContext&)> make;
};

// Every kernel family on shapes of training with `tokens` tokens. bench/peers/ops.py has the same by name and
// shape.
std::vector<BenchCase> bench_cases(int64_t tokens);

}  // namespace megatron
