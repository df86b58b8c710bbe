#pragma once

#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "megatron/autograd/rank_context.h"
#include "megatron/config/config.h"
#include "megatron/parallel/parallel_context.h"

namespace megatron {

// Where a rank stands among those that may dump activations.
struct DumpPlace {
  int tp = 0, pp = 0, ep = 0, cp = 0, gtp = 0, replica = 0;
  bool first_of_experts = false;  // no rank before it holds its share of the experts

  bool dumps() const { return replica == 0 || first_of_experts; }
};

// The names of the files that the ranks of a world dump into, without suffix; empty: this one dumps nothing.
// "mp_rank_00_000_000" is the tensor, pipeline and expert rank; ranks that have all three in common add what
// tells them apart, "mp_rank_00_000_000_cp001".
std::vector<std::string> dump_names(const std::vector<DumpPlace>& places);

// What a rank shows of a step's passes to whoever looks into a run.
// --save-activations-interval, --save-dgrads-interval: inputs and outputs of linears, norms, routers and of
// the embedding in the last micro-batch, and their gradients, in DIR/activations/iter_0000123 and
// DIR/dgrads/iter_0000123, from the ranks of the first replica and those whose experts no rank before holds.
// --save-tokens-per-expert-interval: rows of a rank's experts by micro-batch, in
// DIR/tokens_per_expert/rank0.jsonl.
// --moe-routing-trace-path: what routers choose, in router_trace_rank0.jsonl of that folder, and sidecars.
class StepProbe final : public TensorProbe {
 public:
  // All ranks construct one alike. `restarted`: a fault has ended an earlier one in this process, so that a
  // routing trace is appended to. It then holds a step twice that is computed again.
  StepProbe(RankContext& ctx, const Config& config, const ParallelContext& parallel, bool restarted);
  ~StepProbe() override;

  // Around the passes of `iteration`, from 1; begin() forgets what a pass before has left. finish() writes,
  // and returns what, for the log.
  void begin(RankContext& ctx, int64_t iteration);
  std::vector<std::string> finish(RankContext& ctx, int64_t iteration);
  void see(RankContext& ctx, std::string_view parameter, std::string_view place,
           const Tensor& value) override;

 private:
  struct Place;  // of a module in the model
  using Tensors = std::map<std::string, Tensor>;

  bool is_due(int64_t interval, int64_t iteration) const;
  void see_router(RankContext& ctx, const std::string& module, std::string_view place, const Tensor& value);
  std::string write(const char* what, int64_t iteration, Tensors& tensors) const;
  void write_counts(int64_t iteration);
  std::string trace_path(const char* name, const char* suffix) const;
  void open_trace(bool restarted);
  void write_trace(RankContext& ctx, int64_t iteration);

  RankContext& ctx_;
  const Config& config_;
  std::string dump_name_;  // empty: this rank dumps no activations
  bool activations_ = false, dgrads_ = false, counts_ = false, traces_ = false;  // of the step that runs
  Tensors activation_tensors_, gradient_tensors_;
  std::map<std::string, std::vector<std::vector<int64_t>>> rows_of_experts_;  // by module, then micro-batch

  struct Choice {
    std::string module;
    Tensor experts, hidden, logits;  // on the host; the latter two as bf16, where they are asked for
  };
  Choice seen_;  // of the router that is at work
  std::vector<Choice> choices_;
  Tensors router_state_;
  std::set<int64_t> traced_;                     // steps in the trace, from 0
  int64_t hidden_bytes_ = 0, logits_bytes_ = 0;  // that the files have
};

}  // namespace megatron
