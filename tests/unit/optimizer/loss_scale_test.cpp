#include "megatron/optimizer/loss_scale.h"

#include <gtest/gtest.h>

#include "megatron/base/error.h"

namespace megatron {
namespace {

TEST(LossScale, IsHalvedOnceOverflowsExceedTheHysteresisAndDoublesAfterAWindow) {
  LossScale scale({.initial = 16, .minimum = 2, .window = 3, .hysteresis = 2});
  std::vector<double> seen;
  for (const char* c = "xxx...x.xxxx...xx"; *c; ++c) {
    seen.push_back(scale.value());
    scale.update(*c == 'x');
  }
  seen.push_back(scale.value());
  // The first overflow is forgiven, later ones are not until the scale has grown again; it stays above 2.
  EXPECT_EQ(seen, (std::vector<double>{16, 16, 8, 4, 4, 4, 8, 8, 8, 4, 2, 2, 2, 2, 2, 4, 4, 2}));
}

TEST(LossScale, GoesOnFromItsState) {
  const LossScaleOptions options{.initial = 1024, .window = 4, .hysteresis = 3};
  LossScale whole(options), first(options), second(options);
  const bool overflows[] = {true, false, true, true, false, false, false, false, true};
  for (int i = 0; i < 5; ++i) first.update(overflows[i]);
  second.restore(first.state());
  for (int i = 5; i < 9; ++i) second.update(overflows[i]);
  for (const bool overflow : overflows) whole.update(overflow);
  EXPECT_EQ(second.state(), whole.state());
  EXPECT_EQ(whole.value(), 1024);  // halved once, doubled once
}

TEST(LossScale, AConstantOneStays) {
  LossScale scale({.constant = 128});
  scale.update(true);
  scale.restore({.scale = 4});
  EXPECT_EQ(scale.value(), 128);
  EXPECT_EQ(LossScale().value(), 1);
}

TEST(LossScale, RefusesAScaleThatIsNone) {
  LossScale scale(LossScaleOptions{});
  EXPECT_THROW(scale.restore({.scale = 0}), Error);
  EXPECT_EQ(scale.value(), 4294967296);
}

}  // namespace
}  // namespace megatron
