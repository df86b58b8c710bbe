#include "megatron/parallel/pipeline/stage_layout.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "megatron/base/error.h"

namespace megatron {
namespace {

template <class... Args>
[[noreturn]] void reject(fmt::format_string<Args...> format, Args&&... args) {
  throw ConfigError("pipeline layout: " + fmt::format(format, std::forward<Args>(args)...));
}

std::string describe(const StageLayers& stage) {
  if (stage.empty()) return "(empty stage)";
  std::vector<std::string> runs;
  for (size_t first = 0; first < stage.size();) {
    size_t last = first;
    while (last < stage.size() && stage[last] == stage[first]) ++last;
    const std::string_view name = layer_kind_name(stage[first]);
    runs.push_back(last - first == 1 ? std::string(name) : fmt::format("{}*{}", name, last - first));
    first = last;
  }
  return fmt::format("{}", fmt::join(runs, ","));
}

}  // namespace

StageLayout::StageLayout(std::vector<StageLayers> stages, int pp) : stages_(std::move(stages)), pp_(pp) {
  if (pp < 1) reject("pp is {}; it starts at 1", pp);
  if (stages_.size() % static_cast<size_t>(pp) != 0)
    reject("its {} stages cannot be divided among pp={} ranks: use a multiple of {} stages", stages_.size(),
           pp, pp);
}

const StageLayers& StageLayout::stage(int pp_rank, int vp_stage) const {
  require(pp_rank >= 0 && pp_rank < pp_ && vp_stage >= 0 && vp_stage < vpp(),
          "pipeline layout: no stage (pp rank {}, virtual stage {}) in pp={} vpp={}", pp_rank, vp_stage, pp_,
          vpp());
  return stages_[static_cast<size_t>(vp_stage * pp_ + pp_rank)];
}

StageLayers StageLayout::flat() const {
  StageLayers layers;
  for (const StageLayers& stage : stages_) layers.insert(layers.end(), stage.begin(), stage.end());
  return layers;
}

int StageLayout::count(LayerKind kind, int pp_rank, int vp_stage) const {
  const StageLayers& layers = stage(pp_rank, vp_stage);
  return static_cast<int>(std::count(layers.begin(), layers.end(), kind));
}

int StageLayout::offset(LayerKind kind, int pp_rank, int vp_stage) const {
  int before = 0;
  for (int k = 0; k < vp_stage * pp_ + pp_rank; ++k) before += count(kind, k % pp_, k / pp_);
  return before;
}

bool StageLayout::validate(int num_layers, std::optional<int> mtp_num_layers) const {
  const std::string wrong = check_pipeline_layout(stages_, pp_, num_layers, mtp_num_layers.value_or(0));
  if (!wrong.empty()) reject("{}", wrong);
  for (int rank = 0; rank < pp_ - 1; ++rank)
    if (count(LayerKind::mtp, rank, vpp() - 1) > 0) return true;
  return false;
}

std::string StageLayout::table() const {
  std::vector<std::vector<std::string>> rows;
  if (vpp() > 1) {
    rows.push_back({""});
    for (int v = 0; v < vpp(); ++v) rows.back().push_back(fmt::format("VPP rank {}", v));
  }
  for (int first = 0; first < pp_;) {
    std::vector<std::string> cells;
    for (int v = 0; v < vpp(); ++v) cells.push_back(describe(stage(first, v)));
    int last = first;
    const auto equal = [&](int rank) {
      for (int v = 0; v < vpp(); ++v)
        if (stage(rank, v) != stage(first, v)) return false;
      return true;
    };
    while (last + 1 < pp_ && equal(last + 1)) ++last;
    cells.insert(cells.begin(), first == last ? fmt::format("PP rank {}", first)
                                              : fmt::format("PP rank {}-{}", first, last));
    rows.push_back(std::move(cells));
    first = last + 1;
  }
  const std::string gap(vpp() > 4 ? 4 : 8, ' ');
  std::vector<std::string> lines(rows.size());
  for (size_t column = 0; column < rows[0].size(); ++column) {
    size_t width = 0;
    for (const auto& cells : rows) width = std::max(width, cells[column].size());
    for (size_t i = 0; i < rows.size(); ++i)
      lines[i] += fmt::format("{}{:<{}}", column == 0 ? "" : gap, rows[i][column], width);
  }
  return fmt::format("{}", fmt::join(lines, "\n"));
}

}  // namespace megatron
