#include "megatron/training/run/restart_memory.h"

#include "megatron/config/rules/nonuniform_refusals.h"
#include "megatron/models/parallel_setup.h"
#include "megatron/training/plan/plan.h"

namespace megatron {
namespace {

// The first replica with so many of its ranks beside whole ones.
Config with_ranks(Config config, int64_t ranks) {
  std::string slots;
  for (int64_t slot = ranks; slot < config.parallel.tensor_model_parallel_size; ++slot)
    slots += fmt::format("{}{}", slots.empty() ? "0:" : ",", slot);
  config.parallel.tp_spares = 0;
  config.parallel.non_active_ranks_per_dp = {slots};
  return config;
}

}  // namespace

int64_t fewest_ranks_that_fit(const Config& config, int64_t world, DType dtype, const TrainerOptions& options,
                              double bytes) {
  int64_t enough = config.parallel.tensor_model_parallel_size;
  if (!may_lose_ranks(config)) return enough;
  const auto fits = [&](int64_t ranks) {
    const Config smaller = with_ranks(config, ranks);
    return plan_memory(smaller, parallel_sizes(smaller, world), dtype, options).largest().bytes() <= bytes;
  };
  if (fits(1)) return 1;
  for (int64_t few = 1; enough - few > 1;) {
    const int64_t middle = (few + enough) / 2;
    (fits(middle) ? enough : few) = middle;
  }
  return enough;
}

}  // namespace megatron
