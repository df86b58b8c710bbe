#include "megatron/comm/string_collectives.h"

#include <gtest/gtest.h>

#include "megatron/comm/run_ranks.h"

namespace megatron {
namespace {

TEST(Texts, OfAnyLengthReachEveryRank) {
  run_ranks(3, [](int rank, const ProcessGroup& world) {
    const std::vector<std::string> texts{"one", "", "three\nlines\n"}, none(3);
    EXPECT_EQ(all_gather_strings(world, texts[static_cast<size_t>(rank)]), texts);
    EXPECT_EQ(all_gather_strings(world, ""), none);
    for (int root = 0; root < 3; ++root)
      EXPECT_EQ(broadcast_text(world, texts[static_cast<size_t>(rank)], root),
                texts[static_cast<size_t>(root)]);
  });
  EXPECT_EQ(all_gather_strings(ProcessGroup::self(), "alone"), std::vector<std::string>{"alone"});
}

}  // namespace
}  // namespace megatron
