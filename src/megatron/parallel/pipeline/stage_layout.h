#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/config/resolve/pipeline_layout.h"

namespace megatron {

// What each (pipeline rank, virtual stage) holds. Stage k goes to rank k mod pp as its virtual stage k div
// pp.
class StageLayout {
 public:
  StageLayout(std::vector<StageLayers> stages, int pp);
  static StageLayout parse(std::string_view text, int pp) {
    return StageLayout(parse_pipeline_layout(text), pp);
  }

  int pp() const { return pp_; }
  int vpp() const { return static_cast<int>(stages_.size()) / pp_; }
  const std::vector<StageLayers>& stages() const { return stages_; }
  const StageLayers& stage(int pp_rank, int vp_stage) const;
  StageLayers flat() const;

  int count(LayerKind kind, int pp_rank, int vp_stage) const;
  int offset(LayerKind kind, int pp_rank, int vp_stage) const;  // how many stand in earlier stages

  // Refuses a layout that does not fit the model. The result says whether the MTP layers
  // stand on another rank than the last.
  bool validate(int num_layers, std::optional<int> mtp_num_layers) const;

  std::string table() const;  // for people; equal ranks share a row

 private:
  std::vector<StageLayers> stages_;
  int pp_;
};

}  // namespace megatron
