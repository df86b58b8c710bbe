#include "megatron/training/plan/recompute_choice.h"

#include <algorithm>
#include <limits>

namespace megatron {
namespace {

constexpr double kGib = 1 << 30;

// A module and the first layers of each chunk in which it is recomputed.
struct RecomputedModule {
  std::string name;
  int64_t layers;
};
using RecomputedModules = std::vector<RecomputedModule>;

std::string listed(const RecomputedModules& shares, int64_t layers) {
  std::string text;
  for (const RecomputedModule& share : shares) {
    text += (text.empty() ? "" : ", ") + share.name;
    if (share.layers < layers) text += fmt::format(" in {} of {} layers", share.layers, layers);
  }
  return text.empty() ? "nothing" : text;
}

std::vector<std::string> modules_of(const Config& config) {
  const ModelConfig& model = config.model;
  std::vector<std::string> names = {"layernorm", "mlp"};
  if (!model.attends_sparsely()) names.insert(names.begin(), "core_attn");  // it keeps what its indexer chose
  // fp8 layers have nothing to make again.
  const bool narrow = config.precision.every_layer_in_fp8();
  if (!narrow) names.push_back("mlp_act");
  if (model.num_moe_experts > 0) names.push_back("moe");
  if (model.num_moe_experts > 0 && !narrow) names.push_back("moe_act");
  if (model.moe_shared_expert_intermediate_size > 0) names.push_back("shared_experts");
  if (model.multi_latent_attention && !model.attends_sparsely()) names.push_back("mla_up_proj");
  return names;
}

struct Planned {
  double bytes = 0, seconds = 0;
};

class Search {
 public:
  Search(const Config& config, const ParallelSizes& sizes, DType dtype, const DeviceSpeed& speed)
      : config_(config), sizes_(sizes), dtype_(dtype), speed_(speed) {
    const RunPlan run = plan({});
    kept_ = {run.largest().bytes(), run.seconds()};
    for (const RankPlan& rank : run.ranks)
      for (const ModelSlice& chunk : rank.chunks) layers_ = std::max(layers_, chunk.layers);
  }

  int64_t layers() const { return layers_; }  // of the largest chunk
  Planned kept() const { return kept_; }      // a step that keeps everything

  Config recomputing(const RecomputedModules& shares) const {
    Config config = config_;
    ExecutionConfig& e = config.execution;
    e.recompute_granularity = shares.empty() ? RecomputeGranularity::none : RecomputeGranularity::selective;
    e.recompute_memory_gib.reset();
    e.recompute_modules.clear();
    e.recompute_module_layers.clear();
    bool some = false;
    for (const RecomputedModule& share : shares) {
      e.recompute_modules.push_back(share.name);
      // Those that predict further tokens count after the others.
      e.recompute_module_layers.push_back(share.layers +
                                          (share.layers < layers_ ? 0 : config.model.mtp_num_layers));
      some |= share.layers < layers_;
    }
    if (!some) e.recompute_module_layers.clear();
    return config;
  }

  Planned cost(const RecomputedModules& shares) const {
    const RunPlan run = plan(shares);
    return {run.largest().bytes(), run.seconds()};
  }

  // What each further module saves beside those that are chosen, and what it costs.
  std::vector<RecomputeChoice::Module> offers(const RecomputedModules& chosen, const Planned& now) const {
    std::vector<RecomputeChoice::Module> offers;
    for (const std::string& name : modules_of(config_)) {
      if (std::any_of(chosen.begin(), chosen.end(),
                      [&](const RecomputedModule& s) { return s.name == name; }))
        continue;
      RecomputedModules more = chosen;
      more.push_back({name, layers_});
      const Planned then = cost(more);
      offers.push_back(
          {.name = name, .saved_bytes = now.bytes - then.bytes, .seconds = then.seconds - now.seconds});
    }
    auto price = [](const RecomputeChoice::Module& m) {
      return m.saved_bytes > 0 ? m.seconds / m.saved_bytes : std::numeric_limits<double>::infinity();
    };
    std::stable_sort(offers.begin(), offers.end(), [&](auto& a, auto& b) { return price(a) < price(b); });
    return offers;
  }

  // No more layers than are needed: memory falls with every one.
  void shorten(RecomputedModule& share, const RecomputedModules& chosen, double limit) const {
    int64_t too_few = 0, enough = layers_;
    while (enough - too_few > 1) {
      share.layers = (too_few + enough) / 2;
      (cost(chosen).bytes <= limit ? enough : too_few) = share.layers;
    }
    share.layers = enough;
  }

  [[noreturn]] void reject(const RecomputedModules& shares, double limit) const {
    const RunPlan run = plan(shares);
    Config full = recomputing({});
    full.execution.recompute_granularity = RecomputeGranularity::full;
    full.execution.recompute_method = RecomputeMethod::uniform;
    full.execution.recompute_num_layers = 1;
    const double least = plan_run(full, sizes_, dtype_).largest().bytes();
    throw ConfigError(fmt::format(
        "--recompute-modules auto: rank {} needs {:.4g} GiB though it computes {} again, and {:.4g} are "
        "there; use {}",
        run.largest().rank, run.largest().bytes() / kGib, listed(shares, layers_), limit / kGib,
        least <= limit ? fmt::format("--recompute-granularity full, which needs {:.4g} GiB", least / kGib)
                       : what_saves_memory(full, run, limit)));
  }

 private:
  RunPlan plan(const RecomputedModules& shares) const {
    return plan_run(recomputing(shares), sizes_, dtype_, speed_);
  }

  const Config& config_;
  ParallelSizes sizes_;
  DType dtype_;
  DeviceSpeed speed_;
  int64_t layers_ = 1;
  Planned kept_;
};

}  // namespace

bool chooses_recompute(const Config& config) {
  const std::vector<std::string>& names = config.execution.recompute_modules;
  return config.execution.recompute_granularity == RecomputeGranularity::selective && !names.empty() &&
         names[0] == "auto";
}

RecomputeChoice choose_recompute(Config& config, const ParallelSizes& sizes, DType dtype, double limit,
                                 const DeviceSpeed& speed) {
  const Search search(config, sizes, dtype, speed);
  RecomputedModules chosen;
  Planned now = search.kept();
  RecomputeChoice choice{
      .layers = search.layers(), .limit = limit, .kept_bytes = now.bytes, .kept_seconds = now.seconds};
  choice.modules = search.offers(chosen, now);
  for (std::vector<RecomputeChoice::Module> offers = choice.modules; now.bytes > limit;
       offers = search.offers(chosen, now)) {
    if (offers.empty() || offers[0].saved_bytes <= 0) search.reject(chosen, limit);
    chosen.push_back({offers[0].name, search.layers()});
    now.bytes -= offers[0].saved_bytes;
    now.seconds += offers[0].seconds;
  }
  if (!chosen.empty()) {
    search.shorten(chosen.back(), chosen, limit);
    now = search.cost(chosen);
  }
  // A later module may have made an earlier one needless.
  for (size_t i = 0; i < chosen.size();) {
    RecomputedModules fewer = chosen;
    fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
    const Planned then = search.cost(fewer);
    if (then.bytes > limit || then.seconds > now.seconds) {
      ++i;
      continue;
    }
    chosen = fewer;
    now = then;
  }
  choice.bytes = now.bytes;
  choice.seconds = now.seconds;
  for (RecomputeChoice::Module& module : choice.modules)
    for (const RecomputedModule& share : chosen)
      if (share.name == module.name) module.layers = share.layers;
  Config settled = search.recomputing(chosen);
  config = std::move(settled);
  return choice;
}

std::string RecomputeChoice::chosen() const {
  RecomputedModules shares;
  for (const Module& module : modules)
    if (module.layers > 0) shares.push_back({module.name, module.layers});
  return listed(shares, layers);
}

std::string RecomputeChoice::table() const {
  std::string text =
      fmt::format("recompute for {:.2f} GiB a rank; a step that keeps everything needs {:.2f}\n",
                  limit / kGib, kept_bytes / kGib);
  text += fmt::format("  {:<14} {:>9} {:>9} {:>9}\n", "module", "saves GiB", "takes ms", "ms/GiB");
  for (const Module& module : modules) {
    const bool saves = module.saved_bytes > 0;
    const double price = module.seconds * 1e3 / (module.saved_bytes / kGib);
    std::string fate = saves ? "not needed" : "saves nothing";
    if (module.layers > 0)
      fate = module.layers < layers ? fmt::format("in {} of {} layers", module.layers, layers) : "chosen";
    text += fmt::format("  {:<14} {:>9.3f} {:>9.3f} {:>9}  {}\n", module.name, module.saved_bytes / kGib,
                        module.seconds * 1e3, saves ? fmt::format("{:.3f}", price) : "-", fate);
  }
  return text + fmt::format("  {}: {:.2f} GiB, about {:.2f} % more time\n", chosen(), bytes / kGib,
                            100 * (seconds / kept_seconds - 1));
}

}  // namespace megatron
