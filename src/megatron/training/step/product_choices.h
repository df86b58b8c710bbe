#pragma once

#include <string>

#include "megatron/autograd/rank_context.h"
#include "megatron/comm/process_group.h"

namespace megatron {

// What all ranks of a kind use: what is kept in the folder of the first of them, then what they found, of the
// lowest rank first. That rank writes down what is new, in a file for each kind. `found` is text as
// tuned_gemm_algos() gives it, "" of a rank that has no choice; the result is such text, "" where that rank
// has no folder.
struct SharedChoices {
  std::string choices;
  std::string path, problem;  // where the first rank of a kind keeps them, and why it could not
};
SharedChoices share_choices(const ProcessGroup& world, const std::string& folder, const std::string& found);

// Which kernels serve a run's GEMMs. Those that earlier runs found to be the fastest serve from the
// beginning; GEMMs of other shapes are measured in the first step. All ranks on one kind of GPU choose
// alike, for what several of them compute from the same numbers should have the same bits: alone, a rank uses
// what it finds at once; otherwise the first step goes by the library's first proposals, and what was found
// serves from the second step on. Later steps measure nothing: where lengths vary, there would be no end.
class ProductChoices {
 public:
  // All ranks of the world call this and finish_first_step(). Choices are kept in a folder; "" on the first
  // rank: nothing is read, measured or kept, and every GEMM is the library's first proposal.
  ProductChoices(RankContext& ctx, const ProcessGroup& world, std::string folder);
  void finish_first_step();

  const std::string& news() const { return news_; }  // of the last call, for people, on the first rank

 private:
  SharedChoices use_shared(const std::string& found);

  RankContext& ctx_;
  ProcessGroup world_;
  std::string folder_, known_, news_;
};

}  // namespace megatron
