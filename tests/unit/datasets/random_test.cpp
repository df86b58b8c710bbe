#include <gtest/gtest.h>

#include <random>

#include "megatron/base/error.h"
#include "megatron/datasets/index/md5.h"
#include "megatron/datasets/random/numpy_math.h"
#include "megatron/datasets/random/numpy_random.h"
#include "megatron/datasets/random/pcg64.h"
#include "megatron/datasets/random/torch_random.h"

namespace megatron {
namespace {

TEST(Mt19937, IsTheStandardsGenerator) {
  Mt19937 ours(5489);
  std::mt19937 theirs(5489);
  for (int i = 0; i < 2000; ++i) ASSERT_EQ(ours.next32(), theirs());
}

std::vector<int> counting(int n) {
  std::vector<int> values(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) values[static_cast<size_t>(i)] = i;
  return values;
}

TEST(RandomState, ShufflesAsNumpy) {
  std::vector<int> values = counting(10);
  RandomState(0).shuffle(values);
  EXPECT_EQ(values, (std::vector<int>{2, 8, 4, 9, 1, 6, 7, 3, 0, 5}));
  RandomState stream(1234);
  values = counting(10);
  stream.shuffle(values);
  EXPECT_EQ(values, (std::vector<int>{7, 2, 9, 1, 0, 8, 4, 5, 6, 3}));
  values = counting(16);
  stream.shuffle(values);
  EXPECT_EQ(values, (std::vector<int>{7, 13, 2, 3, 1, 15, 5, 4, 0, 8, 6, 14, 12, 11, 10, 9}));
}

TEST(RandomState, CertainOutcomesStillDraw) {
  RandomState a(3), b(3);
  EXPECT_TRUE(a.bernoulli(1.0));
  EXPECT_FALSE(b.bernoulli(0.0));
  EXPECT_EQ(a.next32(), b.next32());
  RandomState c(3);
  c.uniform();
  EXPECT_EQ(RandomState(3).interval(0), 0u);
}

TEST(Pcg64, LengthsOfMockData) {
  Pcg64 random(0);
  for (uint32_t expected : {3484, 2609, 2094, 1105, 1261, 168, 309, 68, 718, 3331, 2660, 3738})
    EXPECT_EQ(1 + random.bounded(4094), expected);
}

TEST(TorchRandperm, SeedZero) {
  EXPECT_EQ(torch_randperm(10, 0), (std::vector<int64_t>{4, 1, 7, 5, 3, 9, 0, 8, 6, 2}));
  EXPECT_THROW(torch_randperm(int64_t{1} << 40, 0), Error);
}

TEST(Md5, KnownTexts) {
  EXPECT_EQ(md5_hex(""), "d41d8cd98f00b204e9800998ecf8427e");
  EXPECT_EQ(md5_hex("abc"), "900150983cd24fb0d6963f7d28e17f72");
  EXPECT_EQ(md5_hex("12345678901234567890123456789012345678901234567890123456789012345678901234567890"),
            "57edf4a22be3c955ac49da2e2107b67a");
  for (size_t n = 54; n < 66; ++n) EXPECT_EQ(md5_hex(std::string(n, 'x')).size(), 32u);
}

TEST(NumpySum, RoundsAsPairwise) {
  // Sequential summation of these gives another double.
  std::vector<double> values;
  for (int i = 0; i < 300; ++i) values.push_back(1.0 / (i + 1));
  double sequential = 0;
  for (double value : values) sequential += value;
  EXPECT_NEAR(numpy_sum(values), sequential, 1e-12);
  EXPECT_EQ(numpy_sum(std::span(values).first(7)),
            1.0 + 1.0 / 2 + 1.0 / 3 + 1.0 / 4 + 1.0 / 5 + 1.0 / 6 + 1.0 / 7);
}

}  // namespace
}  // namespace megatron
