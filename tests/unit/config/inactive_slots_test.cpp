#include "megatron/config/resolve/inactive_slots.h"

#include <gtest/gtest.h>

#include "megatron/base/error.h"

namespace megatron {
namespace {

using Slots = std::vector<int64_t>;

ParallelConfig with(std::vector<std::string> lost, int64_t spares = 0) {
  ParallelConfig parallel;
  parallel.tensor_model_parallel_size = 8;
  parallel.non_active_ranks_per_dp = std::move(lost);
  parallel.tp_spares = spares;
  return parallel;
}

TEST(InactiveSlots, NamesReplicasAndTheirParts) {
  const auto list = parse_inactive_slots({"1:2,5", "0.1.2:7"});
  ASSERT_EQ(list.size(), 2U);
  EXPECT_EQ(list[0].dp, 1);
  EXPECT_EQ(list[0].cp, -1);
  EXPECT_EQ(list[0].slots, (Slots{2, 5}));
  EXPECT_EQ(list[1].cp, 1);
  EXPECT_EQ(list[1].pp, 2);
  EXPECT_EQ(list[1].slots, (Slots{7}));
}

TEST(InactiveSlots, RefusesWhatIsNoEntry) {
  for (const char* entry :
       {"", "1", "1:", ":2", "1:2,", "a:2", "1:b", "1.2:3", "1:2:3", "-1:2", "1:99999999999"})
    EXPECT_THROW(parse_inactive_slots({entry}), ConfigError) << entry;
}

// With spares, replicas with fewer lost slots give up healthy ones from the highest on.
TEST(InactiveSlots, SparesMakeReducedReplicasAlike) {
  const auto list = inactive_slots(with({"0:2,5", "1:1"}, 2));
  ASSERT_EQ(list.size(), 2U);
  EXPECT_EQ(list[0].slots, (Slots{2, 5}));
  EXPECT_EQ(list[1].slots, (Slots{1, 7}));
  EXPECT_TRUE(inactive_slots(with({})).empty());
}

TEST(InactiveSlots, SparesAloneIdleTheLastSlotsOfTheFirstReplicas) {
  ParallelConfig parallel = with({}, 2);
  parallel.num_reduced_tp_dp_ranks = 2;
  const auto list = inactive_slots(parallel);
  ASSERT_EQ(list.size(), 2U);
  EXPECT_EQ(list[1].dp, 1);
  EXPECT_EQ(list[1].slots, (Slots{6, 7}));
}

}  // namespace
}  // namespace megatron
