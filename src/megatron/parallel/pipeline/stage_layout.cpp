#include "megatron/parallel/pipeline/stage_layout.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "megatron/base/error.h"

namespace megatron {
namespace {

constexpr size_t kLongestLayout = 1 << 20;

template <class... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) {
  throw ConfigError("pipeline layout: " + fmt::format(format, std::forward<Args>(args)...));
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Reads "*n" at `at`, moving it past; nullopt where none stands there.
std::optional<size_t> read_repeat(std::string_view text, size_t& at) {
  if (at + 1 >= text.size() || text[at] != '*' || !is_digit(text[at + 1])) return std::nullopt;
  size_t count = 0;
  for (++at; at < text.size() && is_digit(text[at]); ++at)
    count = std::min(count * 10 + static_cast<size_t>(text[at] - '0'), kLongestLayout + 1);
  return count;
}

void append(std::string& out, std::string_view part, size_t times) {
  if (part.size() * times + out.size() > kLongestLayout)
    refuse("it expands to more than {} layers", kLongestLayout);
  for (size_t i = 0; i < times; ++i) out += part;
}

std::string expand_runs(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t close = text[at] == '(' ? text.find(')', at) : std::string_view::npos;
    size_t after = close + 1;
    if (close != std::string_view::npos && close > at + 1) {
      if (const auto times = read_repeat(text, after)) {
        append(out, text.substr(at + 1, close - at - 1), *times);
        at = after;
        continue;
      }
    }
    out += text[at++];
  }
  return out;
}

std::string expand_layers(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const char layer = text[at++];
    append(out, {&layer, 1}, read_repeat(text, at).value_or(1));
  }
  return out;
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

std::string_view layer_kind_name(LayerKind kind) {
  switch (kind) {
    case LayerKind::embedding:
      return "embedding";
    case LayerKind::decoder:
      return "decoder";
    case LayerKind::mtp:
      return "mtp";
    case LayerKind::loss:
      return "loss";
  }
  fail("layer_kind_name: {} is not a layer kind", static_cast<int>(kind));
}

std::vector<StageLayers> parse_stages(std::string_view text) {
  std::string plain(text);
  plain.erase(std::remove(plain.begin(), plain.end(), ','), plain.end());
  std::vector<StageLayers> stages(1);
  for (char c : expand_layers(expand_runs(plain))) {
    if (c == '|')
      stages.emplace_back();
    else if (std::string_view("EtmL").find(c) != std::string_view::npos)
      stages.back().push_back(static_cast<LayerKind>(c));
    else
      refuse(
          "'{}' in \"{}\" is not a layer: use E (embedding), t (transformer layer), m (multi-token "
          "prediction), L (loss)",
          c, text);
  }
  return stages;
}

StageLayout::StageLayout(std::vector<StageLayers> stages, int pp) : stages_(std::move(stages)), pp_(pp) {
  if (pp < 1) refuse("pp is {}; it starts at 1", pp);
  if (stages_.size() % static_cast<size_t>(pp) != 0)
    refuse("its {} stages cannot be divided among pp={} ranks: use a multiple of {} stages", stages_.size(),
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
  const StageLayers layers = flat();
  const auto total = [&](LayerKind kind) {
    return static_cast<int>(std::count(layers.begin(), layers.end(), kind));
  };
  if (layers.empty() || layers.front() != LayerKind::embedding)
    refuse("the first layer must be the embedding (E), not {}",
           layers.empty() ? "nothing" : layer_kind_name(layers.front()));
  if (layers.back() != LayerKind::loss)
    refuse("the last layer must be the loss (L), not {}", layer_kind_name(layers.back()));
  for (LayerKind once : {LayerKind::embedding, LayerKind::loss})
    if (total(once) != 1) refuse("it has {} {} layers; it must have one", total(once), layer_kind_name(once));
  if (total(LayerKind::decoder) != num_layers)
    refuse("it has {} transformer layers (t), but num_layers is {}", total(LayerKind::decoder), num_layers);
  const int mtp = mtp_num_layers.value_or(0);
  if (total(LayerKind::mtp) != mtp)
    refuse("it has {} multi-token-prediction layers (m), but mtp_num_layers is {}", total(LayerKind::mtp),
           mtp);
  if (mtp == 0) return false;

  const auto first_mtp = std::find(layers.begin(), layers.end(), LayerKind::mtp);
  if (std::find(first_mtp, layers.end(), LayerKind::decoder) != layers.end())
    refuse(
        "a transformer layer (t) stands after the first multi-token-prediction layer (m): move every m "
        "behind the last t");
  int k = 0;
  while (count(LayerKind::mtp, k % pp_, k / pp_) == 0) ++k;
  const int rank = k % pp_, virtual_stage = k / pp_;
  if (count(LayerKind::mtp, rank, virtual_stage) != mtp)
    refuse("the multi-token-prediction layers (m) stand in several stages: put all {} in one", mtp);
  if (virtual_stage != vpp() - 1)
    refuse(
        "the multi-token-prediction layers (m) stand in virtual stage {} of rank {}: they must be in its "
        "last, {}",
        virtual_stage, rank, vpp() - 1);
  return rank != pp_ - 1;
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
