#include "megatron/tensor/tensor.h"

#include <gtest/gtest.h>

#include <numeric>

#include "megatron/tensor/philox.h"

namespace megatron {
namespace {

class TensorTest : public ::testing::Test {
 protected:
  std::shared_ptr<Allocator> allocator = std::make_shared<Allocator>(make_runtime(kCpu));

  Tensor counting(Shape shape) {
    Tensor t = Tensor::empty(allocator, shape, DType::F32);
    std::iota(t.data<float>(), t.data<float>() + t.numel(), 0.f);
    return t;
  }
  static float at(const Tensor& t, std::initializer_list<int64_t> index) {
    const float* p = t.data<float>();
    int d = 0;
    for (int64_t i : index) p += i * t.stride(d++);
    return *p;
  }
  static std::string error(const std::function<void()>& f) {
    try {
      f();
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  }
};

TEST_F(TensorTest, ViewsShareMemory) {
  Tensor t = counting({2, 3, 4});
  EXPECT_EQ(at(t.transpose(0, 2), {3, 2, 1}), 23);
  EXPECT_EQ(at(t.slice(1, 1, 3), {1, 0, 2}), 18);
  EXPECT_EQ(at(t.select(1, 2), {1, 3}), 23);
  EXPECT_EQ(at(t.view({6, -1}), {5, 3}), 23);
  t.view({24}).data<float>()[0] = 99;
  EXPECT_EQ(at(t, {0, 0, 0}), 99);
}

TEST_F(TensorTest, ViewsOfStridedTensorsWhereNoCopyIsNeeded) {
  Tensor part = counting({4, 6}).slice(1, 0, 4);
  EXPECT_EQ(at(part.view({4, 2, 2}), {3, 1, 1}), 21);
  EXPECT_EQ(at(part.view({2, 2, 4}), {1, 1, 3}), 21);
  EXPECT_NE(error([&] { part.view({16}); }).find("without a copy"), std::string::npos);
}

TEST_F(TensorTest, ExpandRepeatsWithoutMemory) {
  Tensor row = counting({1, 3}).expand({4, 3});
  EXPECT_EQ(at(row, {3, 2}), 2);
  EXPECT_EQ(row.stride(0), 0);
  EXPECT_FALSE(row.is_contiguous());
}

TEST_F(TensorTest, BadUseNamesShapesAndCause) {
  Tensor t = counting({2, 3});
  EXPECT_EQ(error([&] { t.view({4, 2}); }), "view: [4, 2] has 8 elements, fp32[2, 3] on cpu has 6");
  EXPECT_EQ(error([&] { t.slice(1, 2, 5); }), "slice: [2, 5) of dimension 1 is outside fp32[2, 3] on cpu");
  EXPECT_EQ(error([&] { t.data<double>(); }), "the tensor fp32[2, 3] on cpu was read as fp64");
  EXPECT_EQ(error([] { Tensor().raw(); }), "an undefined tensor was read");
}

TEST_F(TensorTest, ReadingFreedMemoryIsAnError) {
  Tensor t = counting({2, 3}), view = t.select(0, 1);
  t.storage().free();
  EXPECT_EQ(error([&] { view.data<float>(); }),
            "the tensor fp32[3] on cpu was read after its memory was given back");
  EXPECT_EQ(allocator->statistics().total.current, 0u);
}

TEST_F(TensorTest, MemoryGoesBackWithTheLastView) {
  Tensor view;
  {
    Tensor t = counting({8, 8});
    view = t.slice(0, 0, 2);
  }
  EXPECT_GT(allocator->statistics().total.current, 0u);
  view = {};
  EXPECT_EQ(allocator->statistics().total.current, 0u);
}

// Memory of one's own may be written anew by its last holder; a caller's buffer never.
TEST_F(TensorTest, OnlyOwnMemoryIsHeldAlone) {
  Tensor own = counting({4});
  EXPECT_TRUE(own.storage().unique());
  {
    Tensor view = own.view({2, 2});
    EXPECT_FALSE(own.storage().unique());
  }
  EXPECT_TRUE(own.storage().unique());
  float buffer[4] = {};
  EXPECT_FALSE(Tensor::wrap(buffer, {4}, DType::F32).storage().unique());
}

TEST_F(TensorTest, MemoryThatWasGivenBackCanBeRestoredForAllViews) {
  Tensor t = counting({8, 8}), view = t.slice(0, 2, 4);
  t.storage().free();
  EXPECT_EQ(allocator->statistics().total.current, 0u);
  EXPECT_THROW(view.raw(), Error);
  t.storage().restore();
  EXPECT_GT(allocator->statistics().total.current, 0u);
  view.data<float>()[0] = 7;
  EXPECT_EQ(t.data<float>()[16], 7);
}

// The reference vectors of Philox 4x32-10 (Random123).
TEST(Philox, KnownValues) {
  Philox zero = Philox::at({0, 0}, 0);
  EXPECT_EQ(zero.word[0], 0x6627e8d5u);
  EXPECT_EQ(zero.word[1], 0xe169c58du);
  EXPECT_EQ(zero.word[2], 0xbc57ac4cu);
  EXPECT_EQ(zero.word[3], 0x9b00dbd8u);
  Philox ones = Philox::at({~uint64_t{0}, ~uint64_t{0}}, ~uint64_t{0});
  EXPECT_EQ(ones.word[0], 0x408f276du);
  EXPECT_EQ(ones.word[3], 0x6d5451fdu);
}

}  // namespace
}  // namespace megatron
