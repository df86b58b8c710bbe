#pragma once

#include <map>
#include <optional>
#include <span>

#include "megatron/device/graph.h"
#include "megatron/inference/logit_rows.h"
#include "megatron/models/decode_step.h"

namespace megatron {

// Steps of one token a sequence as CUDA graphs: one call to the driver instead of a launch for each kernel. A
// graph serves a number of sequences and a number of blocks of each, both rounded up; missing sequences are
// padding that reads and writes a block of the cache that no request has. The first step of a kind runs as
// always, which loads and plans what it needs, and the second is captured.
class DecodeGraphs {
 public:
  // can_capture_decode() holds, and `spare_block` of the cache is nobody's.
  DecodeGraphs(RankContext& ctx, Model& model, PagedCache& cache, int64_t spare_block);

  static bool takes(const StepInput& input);
  // The step's logits, and the token of each sequence that `draws` take, or that of the largest logit where
  // they are empty. They are the next step's memory too.
  StepOutput run(const StepInput& input, std::span<const DeviceDraw> draws = {});
  // The model's weights may lie elsewhere now.
  void forget();

  int64_t count() const;
  int64_t bytes() const;  // of what they compute in
  // Why a step could not be captured, for want of memory say: from then on all run as always. "": all could.
  const std::string& fault() const { return fault_; }

  // Sequences that a step of `count` is filled up to.
  static int64_t padded(int64_t count);

 private:
  struct Kind {
    int64_t sequences, blocks;  // blocks of each
    bool draws;                 // whether tokens are drawn, or the largest logit is taken
    auto operator<=>(const Kind&) const = default;
  };
  struct Step {
    SequenceBatch batch;
    Tensor draws;  // fp64 [sequences, kSampleSettings], where the kind has them
    StepOutput output;
    std::optional<CudaGraph> graph;
    uint64_t used = 0;  // when it was last run
  };
  Step& step_for(const Kind& kind);
  void refill(Step& step, const StepInput& input, std::span<const DeviceDraw> draws);
  StepOutput compute(const Step& step);
  bool capture(Step& step);

  RankContext& ctx_;
  Model& model_;
  PagedCache& cache_;
  int64_t spare_block_;
  StepFrequencies frequencies_;
  std::shared_ptr<Allocator> memory_, host_memory_;  // of graphs alone, and of what they copy to the host
  std::string fault_;
  uint64_t steps_ = 0;
  std::map<Kind, Step> kinds_;
};

}  // namespace megatron
