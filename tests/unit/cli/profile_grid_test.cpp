#include "megatron/cli/bench/profile_grid.h"

#include <gtest/gtest.h>

#include <set>

#include "megatron/models/parallel_setup.h"
#include "megatron/training/plan/plan.h"
#include "megatron/training/setup/run_settings.h"

namespace megatron {
namespace {

// Every model of the grid is accepted and fits into a GPU of 80 GB.
TEST(ProfileGrid, ModelsFit) {
  std::set<std::string> names;
  for (const bool cuda : {true, false})
    for (const GridCase& one : profile_grid(cuda)) {
      SCOPED_TRACE(one.name());
      EXPECT_TRUE(names.insert(one.name()).second);
      const Config config =
          resolve(sources_of(one.train, one.run), {.purpose = Purpose::model, .allow_unavailable = true})
              .config;
      const ParallelSizes sizes = parallel_sizes(config, 1);
      const RunPlan plan = plan_run(config, sizes, model_dtype(config));
      EXPECT_LT(plan.largest().bytes(), 75e9);
      EXPECT_GT(plan.largest().seconds, 0);
    }
}

}  // namespace
}  // namespace megatron
