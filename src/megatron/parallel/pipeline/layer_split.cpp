#include "megatron/parallel/pipeline/layer_split.h"

#include <algorithm>

#include "megatron/base/error.h"

namespace megatron {
namespace {

template <class... Args>
void check(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) throw ConfigError("pipeline split: " + fmt::format(format, std::forward<Args>(args)...));
}

LayerRange uneven(const LayerSplit& s, int rank, int vp_stage) {
  check(!s.account_for_embedding && !s.account_for_loss,
        "layers of the first or last stage are given and embedding or loss is accounted for: use one of the "
        "two");
  const int first = s.first_stage_layers.value_or(0), last = s.last_stage_layers.value_or(0);
  check(first >= 0 && last >= 0, "first and last stage have {} and {} layers; they cannot be negative", first,
        last);
  const int middle_ranks = s.pp - s.first_stage_layers.has_value() - s.last_stage_layers.has_value();
  check(middle_ranks >= 0, "first and last stage are given, but pp is {}", s.pp);
  const int middle = s.num_layers - first - last;
  check(middle >= 0, "first and last stage take {} and {} layers, but the model has {}", first, last,
        s.num_layers);
  if (middle_ranks == 0)
    check(middle == 0, "{} of {} layers are left over, and no stage is left to hold them", middle,
          s.num_layers);
  else
    check(middle % middle_ranks == 0, "{} layers are left for {} middle ranks and do not divide evenly",
          middle, middle_ranks);
  const int per_middle = middle_ranks == 0 ? 0 : middle / middle_ranks;
  for (int count : {first, last, per_middle})
    check(count % s.vpp == 0, "{} layers of one rank do not divide into vpp={} virtual stages", count, s.vpp);

  const auto layers_of = [&](int r) {
    if (r == 0 && s.first_stage_layers) return first / s.vpp;
    if (r == s.pp - 1 && s.last_stage_layers) return last / s.vpp;
    return per_middle / s.vpp;
  };
  LayerRange range{vp_stage * s.num_layers / s.vpp, layers_of(rank)};
  for (int r = 0; r < rank; ++r) range.first += layers_of(r);
  return range;
}

}  // namespace

LayerRange stage_layers(const LayerSplit& s, int pp_rank, int vp_stage) {
  check(s.num_layers >= 0 && s.pp >= 1 && s.vpp >= 1, "num_layers={} pp={} vpp={} is no division",
        s.num_layers, s.pp, s.vpp);
  require(pp_rank >= 0 && pp_rank < s.pp && vp_stage >= 0 && vp_stage < s.vpp,
          "pipeline split: no stage (pp rank {}, virtual stage {}) in pp={} vpp={}", pp_rank, vp_stage, s.pp,
          s.vpp);
  if (s.first_stage_layers || s.last_stage_layers) return uneven(s, pp_rank, vp_stage);

  const int stages = s.pp * s.vpp;
  const int slots = s.num_layers + s.account_for_embedding + s.account_for_loss;
  check(slots % stages == 0,
        "{} layers{} do not divide among pp={} × vpp={} stages: change pp or vpp, give the layers of the "
        "first or last stage, "
        "or a pipeline layout",
        slots, slots == s.num_layers ? "" : " (embedding and loss accounted for)", s.pp, s.vpp);
  const int per_stage = slots / stages, stage = vp_stage * s.pp + pp_rank;
  const bool holds_embedding = s.account_for_embedding && stage == 0;
  const bool holds_loss = s.account_for_loss && stage == stages - 1;
  const LayerRange range{std::max(0, stage * per_stage - (s.account_for_embedding && stage > 0)),
                         per_stage - holds_embedding - holds_loss};
  check(range.count >= 0, "the only stage would hold {} layers", range.count);
  return range;
}

}  // namespace megatron
