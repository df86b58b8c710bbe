#pragma once

#include <functional>

#include "megatron/autograd/rank_context.h"
#include "megatron/parallel/expert/expert_parallel.h"

namespace megatron {

// What a router decided for the tokens of a rank.
struct Routing {
  Tensor experts;  // int64 [tokens, k]: global experts, −1 where a choice was dropped
  Tensor probs;    // [tokens, k]: what each choice's result is multiplied by; undefined: 1
};

// Tokens where their experts are.
struct Dispatched {
  Tensor tokens;         // [rows, hidden], ordered by this rank's experts
  Tensor offsets;        // int32 [experts of this rank + 1], on the device
  Tensor expert_of_row;  // int64 [rows], −1 where a row holds no token; only where asked for
  // The experts' results, row by row, back to the tokens: Σ over the choices of prob · result. With split
  // experts the results are parts, which are summed.
  std::function<Tensor(RankContext&, const Tensor& results)> combine;
};

struct DispatchOptions {
  bool all_to_all = true;  // else every rank gets all tokens, and no number of tokens is read by the host
  bool expert_of_row = false;
  bool fill_backward = false;  // waiting weight gradients are made while gradients travel
  int64_t alignment = 1;       // an expert's rows are padded to a multiple of it
};

// Carries tokens to the experts that the router chose and brings the results back. Ranks may have different
// numbers of tokens, or none; so may experts.
class ExpertDispatcher {
 public:
  ExpertDispatcher(int64_t experts, const ExpertParallel& parallel, const DispatchOptions& options);

  // `share`: the most tokens that a rank has. `meanwhile` runs while tokens travel.
  Dispatched dispatch(RankContext& ctx, const Tensor& x, const Routing& routing, int64_t share,
                      const std::function<void()>& meanwhile = {});

  // An expert's rows are padded to a multiple of it, by zeros.
  void align_rows(int64_t alignment) { options_.alignment = alignment; }

  // From now on no shape depends on what the router chose, and the host reads no count of tokens: every rank
  // gets all tokens. An all-to-all with a fixed size for each pair of ranks would carry more: a token goes to
  // a rank once here, there room is needed for each of its choices.
  void fix_shapes() {
    options_.all_to_all = false;
    table_ = {};  // each exchange has its own
  }

  int64_t local_experts() const { return local_; }

 private:
  Dispatched order(RankContext& ctx, const Tensor& x, const Tensor& experts, const Tensor& probs) const;
  Dispatched exchange(RankContext& ctx, const Tensor& x, const Routing& routing,
                      const std::function<void()>& meanwhile);
  Dispatched gather(RankContext& ctx, const Tensor& x, const Routing& routing, int64_t share);
  Tensor look_up(RankContext& ctx, const std::vector<double>& places, const Tensor& experts);

  int64_t experts_, local_;
  ExpertParallel parallel_;
  DispatchOptions options_;
  Tensor table_;  // what look_up reads, on the device, from its first call on
};

}  // namespace megatron
