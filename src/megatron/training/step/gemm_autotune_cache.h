#pragma once

#include <string>

#include "megatron/autograd/rank_context.h"
#include "megatron/comm/process_group.h"

namespace megatron {

// Tuned algorithms that all ranks with the same header (GPU and cuBLASLt version) use: those in the folder of
// the lowest such rank, then those that ranks found, lowest rank first. That rank writes what is new, one
// file for each header. `found` is the text of GemmAutotune::tuned, "" on a rank without autotuning. The
// result is such text, "" where that lowest rank has no folder.
struct SharedAlgos {
  std::string algos;
  std::string path, problem;  // the cache file, and why it could not be written
};
SharedAlgos share_tuned_algos(const ProcessGroup& world, const std::string& folder, const std::string& found);

// The GEMM algorithms of a run. Those that earlier runs timed serve from the beginning; other shapes are
// timed in the first step. Ranks on the same GPU model use the same algorithms, so that replicated results
// have the same bits: a single rank uses what it finds at once; several take the library's first proposals in
// the first step and the tuned algorithms from the second. Later steps time nothing, since lengths may vary
// without end.
class GemmAutotuneCache {
 public:
  // All ranks of the world call this and finish_first_step(). The cache lies in a folder; "" on rank 0 turns
  // autotuning off, and every GEMM takes the library's first proposal.
  GemmAutotuneCache(RankContext& ctx, const ProcessGroup& world, std::string folder);
  void finish_first_step();

  const std::string& news() const { return news_; }  // log line of the last call, on rank 0

 private:
  SharedAlgos use_shared(const std::string& found);

  RankContext& ctx_;
  ProcessGroup world_;
  std::string folder_, known_, news_;
};

}  // namespace megatron
