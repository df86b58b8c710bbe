#include "megatron/training/recompute_choice.h"

#include <algorithm>
#include <limits>

namespace megatron {
namespace {

using Modules = std::vector<std::string>;
constexpr double kGib = 1 << 30;

std::string listed(const Modules& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text.empty() ? "nothing" : text;
}

Modules modules_of(const Config& config) {
  const ModelConfig& model = config.model;
  Modules names = {"core_attn", "layernorm", "mlp"};
  if (model.gated_linear_unit && config.precision.fp8 == Fp8Format::none) names.push_back("mlp_act");
  if (model.num_moe_experts > 0) names.insert(names.end(), {"moe", "moe_act"});
  if (model.moe_shared_expert_intermediate_size > 0) names.push_back("shared_experts");
  if (model.multi_latent_attention) names.push_back("mla_up_proj");
  return names;
}

Config recomputing(Config config, const Modules& modules) {
  config.execution.recompute_granularity =
      modules.empty() ? RecomputeGranularity::none : RecomputeGranularity::selective;
  config.execution.recompute_modules = modules;
  config.execution.recompute_memory_gib.reset();
  return config;
}

struct Planned {
  double bytes = 0, seconds = 0;
};

class Search {
 public:
  Search(const Config& config, const ParallelSizes& sizes, DType dtype, const DeviceSpeed& speed)
      : config_(config), sizes_(sizes), dtype_(dtype), speed_(speed) {}

  RunPlan plan(const Modules& modules) const { return plan(recomputing(config_, modules)); }
  RunPlan plan(const Config& config) const { return plan_run(config, sizes_, dtype_, speed_); }
  Planned cost(const Modules& modules) const {
    const RunPlan run = plan(modules);
    return {run.largest().bytes(), run.seconds()};
  }

  // What each further module saves beside those that are chosen, and what it costs.
  std::vector<RecomputeChoice::Module> offers(const Modules& chosen, const Planned& now) const {
    std::vector<RecomputeChoice::Module> offers;
    for (const std::string& name : modules_of(config_)) {
      if (std::find(chosen.begin(), chosen.end(), name) != chosen.end()) continue;
      Modules more = chosen;
      more.push_back(name);
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

  [[noreturn]] void refuse(const Modules& modules, double limit) const {
    const Config config = recomputing(config_, modules);
    const RunPlan run = plan(config);
    Config full = recomputing(config_, {});
    full.execution.recompute_granularity = RecomputeGranularity::full;
    full.execution.recompute_method = RecomputeMethod::uniform;
    full.execution.recompute_num_layers = 1;
    const double least = plan(full).largest().bytes();
    throw ConfigError(fmt::format(
        "--recompute-modules auto: rank {} needs {:.4g} GiB though it computes {} again, and {:.4g} are "
        "there; use {}",
        run.largest().rank, run.largest().bytes() / kGib, listed(modules), limit / kGib,
        least <= limit ? fmt::format("--recompute-granularity full, which needs {:.4g} GiB", least / kGib)
                       : what_saves_memory(full, run, limit)));
  }

 private:
  const Config& config_;
  ParallelSizes sizes_;
  DType dtype_;
  DeviceSpeed speed_;
};

}  // namespace

bool chooses_recompute(const Config& config) {
  const Modules& names = config.execution.recompute_modules;
  return config.execution.recompute_granularity == RecomputeGranularity::selective && !names.empty() &&
         names[0] == "auto";
}

RecomputeChoice choose_recompute(Config& config, const ParallelSizes& sizes, DType dtype, double limit,
                                 const DeviceSpeed& speed) {
  const Search search(config, sizes, dtype, speed);
  Modules chosen;
  Planned now = search.cost(chosen);
  RecomputeChoice choice{.limit = limit, .kept_bytes = now.bytes, .kept_seconds = now.seconds};
  choice.modules = search.offers(chosen, now);
  for (std::vector<RecomputeChoice::Module> offers = choice.modules; now.bytes > limit;
       offers = search.offers(chosen, now)) {
    if (offers.empty() || offers[0].saved_bytes <= 0) search.refuse(chosen, limit);
    chosen.push_back(offers[0].name);
    now.bytes -= offers[0].saved_bytes;
    now.seconds += offers[0].seconds;
  }
  // A later module may have made an earlier one needless.
  for (size_t i = 0; i < chosen.size();) {
    Modules fewer = chosen;
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
    module.chosen = std::find(chosen.begin(), chosen.end(), module.name) != chosen.end();
  config = recomputing(std::move(config), chosen);
  return choice;
}

std::string RecomputeChoice::chosen() const {
  Modules names;
  for (const Module& module : modules)
    if (module.chosen) names.push_back(module.name);
  return listed(names);
}

std::string RecomputeChoice::table() const {
  std::string text =
      fmt::format("recompute for {:.2f} GiB a rank; a step that keeps everything needs {:.2f}\n",
                  limit / kGib, kept_bytes / kGib);
  text += fmt::format("  {:<14} {:>9} {:>9} {:>9}\n", "module", "saves GiB", "takes ms", "ms/GiB");
  for (const Module& module : modules) {
    const bool saves = module.saved_bytes > 0;
    text +=
        fmt::format("  {:<14} {:>9.3f} {:>9.3f} {:>9}  {}\n", module.name, module.saved_bytes / kGib,
                    module.seconds * 1e3,
                    saves ? fmt::format("{:.3f}", module.seconds * 1e3 / (module.saved_bytes / kGib)) : "-",
                    module.chosen ? "chosen"
                    : saves       ? "not needed"
                                  : "saves nothing");
  }
  return text + fmt::format("  {}: {:.2f} GiB, about {:.2f} % more time\n", chosen(), bytes / kGib,
                            100 * (seconds / kept_seconds - 1));
}

}  // namespace megatron
