#include "megatron/cli/commands/autotune_check.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "megatron/autotune/search/recipe.h"
#include "megatron/base/error.h"
#include "megatron/base/seconds_since.h"
#include "megatron/config/resolve/resolve.h"
#include "megatron/models/parallel_setup.h"
#include "megatron/training/plan/plan.h"

namespace megatron {

using namespace autotune;

CheckedPlan check_plan(const Json& given, const CostInputs& in, const Candidate& candidate) {
  constexpr double gib = 1073741824.0;
  const int gpus = candidate.plan.gpus;
  CheckedPlan checked;
  try {
    Sources sources;
    sources.file = ConfigText{"recipe.yaml", recipe_text(given, in.model, candidate, in.cluster.name)};
    sources.flags = {{"--world-size", {std::to_string(gpus)}, false}};
    const Config config = resolve(sources, {.purpose = Purpose::model}).config;
    const ParallelSizes sizes = parallel_sizes(config, gpus);
    check_parallel(sizes);
    const DType dtype = config.precision.bf16 ? DType::BF16 : config.precision.fp16 ? DType::F16 : DType::F32;
    const double bytes = plan_memory(config, sizes, dtype).largest().bytes();
    checked.bytes = 1.03 * bytes + (gpus > 1 ? 2.5 : 1.0) * gib;
    if (checked.bytes > 0.94 * in.cluster.gpu.memory_gib * gib) checked.refused = "planned memory";
  } catch (const Error& error) {
    checked.refused = error.what();
  }
  return checked;
}

std::map<std::string, int> check_best(const Json& given, const CostInputs& in, int count, double seconds,
                                      SearchResult& result, const std::function<void(int done)>& progress) {
  const auto start = std::chrono::steady_clock::now();
  const auto in_time = [&] { return seconds_since(start) < seconds; };
  std::map<std::string, int> left_out;
  std::vector<Candidate> kept, rest = std::move(result.best);
  size_t next = 0;
  while (next < rest.size() && static_cast<int>(kept.size()) < count && in_time()) {
    // Two at a time: each runs the pipeline's ranks one after the other.
    const size_t both = std::min<size_t>({2, rest.size() - next, static_cast<size_t>(count) - kept.size()});
    std::vector<CheckedPlan> checked(both);
    std::vector<std::thread> threads;
    for (size_t i = 1; i < both; ++i)
      threads.emplace_back([&, i] { checked[i] = check_plan(given, in, rest[next + i]); });
    checked[0] = check_plan(given, in, rest[next]);
    for (std::thread& thread : threads) thread.join();
    for (size_t i = 0; i < both; ++i) {
      Candidate& candidate = rest[next + i];
      if (!checked[i].refused.empty()) {
        ++left_out[checked[i].refused];
        continue;
      }
      candidate.planned = checked[i].bytes;
      kept.push_back(std::move(candidate));
    }
    next += both;
    if (progress) progress(static_cast<int>(kept.size()));
  }
  for (; next < rest.size(); ++next) kept.push_back(std::move(rest[next]));
  result.best = std::move(kept);
  return left_out;
}

}  // namespace megatron
