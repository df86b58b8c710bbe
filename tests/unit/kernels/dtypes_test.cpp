// Copy, comparison and choice are for values of every dtype, integers and masks among them.
#include <gtest/gtest.h>

#include "megatron/autograd/rank_context.h"

namespace megatron {
namespace {

constexpr DType kAll[] = {DType::F64, DType::F32, DType::BF16, DType::F16, DType::F8E4M3, DType::F8E5M2,
                          DType::I64, DType::I32, DType::I16,  DType::I8,  DType::U8,     DType::Bool};

// Small whole numbers, which every dtype but bool holds exactly; bool holds whether they are not 0.
class Dtypes : public ::testing::TestWithParam<int> {
 protected:
  RankContext ctx{kCpu, GetParam()};

  Tensor make(DType dtype, const std::vector<double>& values, Shape shape) {
    Tensor result = ctx.empty(shape, dtype);
    ctx.kernels->copy(ctx.kernel_context(), {ctx.from_vector(values, shape), result});
    return result;
  }
  std::vector<double> read(const Tensor& tensor) {
    Tensor wide = ctx.empty(tensor.shape(), DType::F64);
    ctx.kernels->copy(ctx.kernel_context(), {tensor, wide});
    return ctx.to_vector<double>(wide);
  }
  static std::vector<double> as(DType dtype, std::vector<double> values) {
    if (dtype == DType::Bool)
      for (double& v : values) v = v != 0;
    return values;
  }
  // Numbers in [0, 8); a vector's width does not divide their count.
  static std::vector<double> numbers(int64_t step) {
    std::vector<double> values(static_cast<size_t>(kRows * kColumns));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>((i * i + i * step) % 8);
    return values;
  }
  static constexpr int64_t kRows = 67, kColumns = 45;
};

TEST_P(Dtypes, CopyConvertsBetweenAll) {
  auto values = numbers(3);
  for (DType from : kAll)
    for (DType to : kAll) {
      Tensor x = make(from, values, {kRows, kColumns}), y = ctx.empty({kRows, kColumns}, to);
      ctx.kernels->copy(ctx.kernel_context(), {x, y});
      EXPECT_EQ(read(y), as(to, as(from, values))) << name_of(from) << " to " << name_of(to);
    }
}

TEST_P(Dtypes, CopyFollowsStrides) {
  auto values = numbers(3);
  for (DType dtype : kAll) {
    SCOPED_TRACE(name_of(dtype));
    Tensor x = make(dtype, values, {kRows, kColumns}), y = ctx.empty({kColumns, kRows}, dtype);
    ctx.kernels->copy(ctx.kernel_context(), {x.transpose(0, 1), y});
    auto there = read(y), expected = as(dtype, values);
    for (int64_t r = 0; r < kRows; ++r)
      for (int64_t c = 0; c < kColumns; ++c)
        ASSERT_EQ(there[static_cast<size_t>(c * kRows + r)], expected[static_cast<size_t>(r * kColumns + c)]);
  }
}

TEST_P(Dtypes, NegativeIntegersKeepTheirSign) {
  std::vector<double> values{-1, -7, 5, -128, 127, 0, -2};
  for (DType from : {DType::I64, DType::I32, DType::I16, DType::I8, DType::F32})
    for (DType to : {DType::I64, DType::I32, DType::I16, DType::I8, DType::F64}) {
      Tensor x = make(from, values, {7}), y = ctx.empty({7}, to);
      ctx.kernels->copy(ctx.kernel_context(), {x, y});
      EXPECT_EQ(read(y), values) << name_of(from) << " to " << name_of(to);
    }
}

// Values that fp64 cannot tell apart: an integer copy and comparison must not pass through floating point.
TEST_P(Dtypes, LargeIntegersAreExact) {
  int64_t large = (int64_t{1} << 53) + 1;
  Tensor a = ctx.from_vector<int64_t>({large, large, -large}, {3});
  Tensor b = ctx.from_vector<int64_t>({large - 1, large, -large + 1}, {3});
  Tensor copy = ctx.empty({3}, DType::I64), mask = ctx.empty({3}, DType::Bool);
  ctx.kernels->copy(ctx.kernel_context(), {a, copy});
  EXPECT_EQ(ctx.to_vector<int64_t>(copy), ctx.to_vector<int64_t>(a));
  ctx.kernels->compare(ctx.kernel_context(), {Comparison::Equal, a, b, mask});
  EXPECT_EQ(read(mask), (std::vector<double>{0, 1, 0}));
  ctx.kernels->compare(ctx.kernel_context(), {Comparison::Less, a, b, mask});
  EXPECT_EQ(read(mask), (std::vector<double>{0, 0, 1}));
}

TEST_P(Dtypes, CompareAndWhereOverAll) {
  auto left = numbers(3), right = numbers(5);
  for (DType dtype : kAll) {
    SCOPED_TRACE(name_of(dtype));
    Shape shape{kRows, kColumns};
    Tensor a = make(dtype, left, shape), b = make(dtype, right, shape);
    auto x = as(dtype, left), y = as(dtype, right);
    for (Comparison kind :
         {Comparison::Equal, Comparison::NotEqual, Comparison::Less, Comparison::LessEqual}) {
      Tensor mask = ctx.empty(shape, DType::Bool), chosen = ctx.empty(shape, dtype);
      ctx.kernels->compare(ctx.kernel_context(), {kind, a, b, mask});
      ctx.kernels->where(ctx.kernel_context(), {mask, a, b, chosen});
      auto bits = read(mask), values = read(chosen);
      for (size_t i = 0; i < x.size(); ++i) {
        bool expected = kind == Comparison::Equal      ? x[i] == y[i]
                        : kind == Comparison::NotEqual ? x[i] != y[i]
                        : kind == Comparison::Less     ? x[i] < y[i]
                                                       : x[i] <= y[i];
        ASSERT_EQ(bits[i], expected) << "comparison " << static_cast<int>(kind) << " element " << i;
        ASSERT_EQ(values[i], expected ? x[i] : y[i]) << "element " << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, Dtypes, ::testing::Values(1, 2));

}  // namespace
}  // namespace megatron
