#include <gtest/gtest.h>

#include "support/golden.h"

// Casts between fp32 and the narrow formats, bit for bit as PyTorch makes them: by the storage types, and by
// the copy kernel, whose vectorised loop is another path.
namespace megatron {
namespace {

using testing::golden_tensors;
using testing::is_close;
using testing::kExact;
using testing::to_device;

template <class T>
void expect_bits(const std::string& what, const Tensor& x, const std::vector<T>& actual, const Tensor& bits) {
  using Bits = decltype(T{}.bits);
  ASSERT_EQ(static_cast<int64_t>(actual.size()), bits.numel());
  const auto* expected = static_cast<const Bits*>(bits.raw());
  int wrong = 0;
  for (int64_t i = 0; i < bits.numel(); ++i) {
    T wanted;
    wanted.bits = expected[i];
    const T found = actual[static_cast<size_t>(i)];
    if (found.bits == wanted.bits) continue;
    if (std::isnan(float{found}) && std::isnan(float{wanted})) continue;  // payloads are not specified
    if (++wrong <= 5)
      ADD_FAILURE() << fmt::format("{}: {:.9g} became {:#x}, expected {:#x}", what, x.data<float>()[i],
                                   int{found.bits}, int{wanted.bits});
  }
  EXPECT_EQ(wrong, 0) << what;
}

template <class T>
void check_cast(const std::string& what, const Tensor& x, const Tensor& bits, const Tensor& back) {
  RankContext ctx(testing::test_device());
  std::vector<T> narrow;
  for (int64_t i = 0; i < x.numel(); ++i) narrow.push_back(T(x.data<float>()[i]));
  expect_bits<T>(what + " by the type", x, narrow, bits);
  Tensor copied = to_device(ctx, x, dtype_of<T>());
  expect_bits<T>(what + " by the kernel", x, ctx.to_vector<T>(copied), bits);
  if (!back) return;
  Tensor wide = ctx.empty(x.shape(), DType::F32);
  ctx.kernels->copy(ctx.kernel_context(), {copied, wide});
  EXPECT_TRUE(is_close(ctx, what + " and back", wide, back, kExact));
}

TEST(GoldenFormats, Casts) {
  const SafetensorsFile golden = golden_tensors("numerics", "fp8_bf16");
  const auto get = [&](const std::string& name) { return golden.tensor(name); };
  check_cast<fp8_e4m3>("e4m3", get("x"), get("e4m3fn.bits"), get("e4m3fn.dequant"));
  check_cast<fp8_e5m2>("e5m2", get("x"), get("e5m2.bits"), get("e5m2.dequant"));
  check_cast<bf16>("bf16", get("bf16.x"), get("bf16.bits"), get("bf16.back"));
  check_cast<fp16>("fp16", get("x"), get("fp16.bits"), get("fp16.back"));
}

TEST(GoldenFormats, HalfWayValuesGoToTheEvenOne) {
  const SafetensorsFile golden = golden_tensors("numerics", "fp8_bf16");
  check_cast<fp8_e4m3>("e4m3", golden.tensor("e4m3fn.mid_x"), golden.tensor("e4m3fn.mid_bits"), {});
  check_cast<fp8_e5m2>("e5m2", golden.tensor("e5m2.mid_x"), golden.tensor("e5m2.mid_bits"), {});
}

template <class T>
void check_table(const Tensor& table) {
  std::vector<double> values;
  for (int byte = 0; byte < 256; ++byte) {
    T value;
    value.bits = static_cast<uint8_t>(byte);
    values.push_back(float{value});
  }
  EXPECT_TRUE(is_close("table", table.shape(), values, testing::to_doubles(table), kExact));
}

TEST(GoldenFormats, EveryByte) {
  const SafetensorsFile golden = golden_tensors("numerics", "fp8_bf16");
  check_table<fp8_e4m3>(golden.tensor("e4m3fn.table"));
  check_table<fp8_e5m2>(golden.tensor("e5m2.table"));
}

}  // namespace
}  // namespace megatron
