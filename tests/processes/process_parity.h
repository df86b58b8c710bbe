#pragma once

#include "megatron/comm/launch.h"
#include "parity/design_cases.h"

// Training by the ranks of several processes against one rank's: every process compares what it holds.
namespace megatron::testing {

inline void expect_parts_equal(const WholeTensors& one, const WholeTensors& parts, const char* what) {
  for (const auto& [name, part] : parts) {
    const WholeTensor& whole = one.at(name);
    double largest = 1e-300, apart = 0;
    for (size_t i = 0; i < whole.values.size(); ++i) {
      largest = std::max(largest, std::abs(whole.values[i]));
      const double distance = part.filled[i] ? std::abs(part.values[i] - whole.values[i]) : 0;
      if (!(distance <= apart)) apart = distance;  // no number counts as far
    }
    EXPECT_LE(apart / largest, kTolerance) << what << " " << name;
  }
}

inline void check_processes(Launch& launch, const Trained& one, const Config& config,
                            const ParallelSizes& sizes, const std::vector<std::vector<int64_t>>& batches,
                            Device device = kCpu) {
  ParityRun run{.sizes = sizes, .device = device};
  run.launch = [&](const RankFunction& fn) { launch.run(fn); };
  const Trained many = train_layout(config, run, batches);
  expect_parts_equal(one.gradients, many.gradients, "gradient of");
  expect_parts_equal(one.parameters, many.parameters, "parameter");
  EXPECT_FALSE(launch.is_first() && many.parameters.empty());  // others may hold stages without layers
  EXPECT_LE(many.ranks_apart, kTolerance);
  ASSERT_EQ(many.losses.size(), batches.size());
  for (size_t i = 0; i < many.losses.size(); ++i)
    EXPECT_NEAR(many.losses[i], one.losses[i], kTolerance * one.losses[i]) << "loss of step " << i;
}

}  // namespace megatron::testing
