#include "megatron/device/allocator.h"

#include <gtest/gtest.h>

#include "megatron/base/error.h"

namespace megatron {
namespace {

TEST(Allocator, RoundsToAClassAtMostAnEighthAbove) {
  for (size_t bytes : {1u, 63u, 64u, 65u, 512u, 513u, 1000u, 4096u, 4097u, 1000003u}) {
    size_t block = Allocator::rounded(bytes);
    EXPECT_GE(block, bytes);
    if (bytes > 512) {
      EXPECT_LE(block, bytes + bytes / 8 + 1) << bytes;
    }
    EXPECT_EQ(Allocator::rounded(block), block) << bytes;
  }
}

TEST(Allocator, ReusesFreedBlocksAndCountsByTag) {
  Allocator allocator(make_runtime(kCpu));
  void* a = allocator.allocate(1000, MemoryTag::Parameter);
  void* b = allocator.allocate(5000, MemoryTag::Activation);
  allocator.deallocate(a, 1000, MemoryTag::Parameter);
  EXPECT_EQ(allocator.allocate(1001, MemoryTag::Gradient), a) << "the same size class";
  auto s = allocator.statistics();
  EXPECT_EQ(s.device_allocations, 2u);
  EXPECT_EQ(s.by_tag[static_cast<int>(MemoryTag::Parameter)].current, 0u);
  EXPECT_EQ(s.by_tag[static_cast<int>(MemoryTag::Parameter)].peak, Allocator::rounded(1000));
  EXPECT_EQ(s.by_tag[static_cast<int>(MemoryTag::Gradient)].current, Allocator::rounded(1001));
  EXPECT_EQ(s.total.current, Allocator::rounded(1001) + Allocator::rounded(5000));
  allocator.deallocate(a, 1001, MemoryTag::Gradient);
  allocator.deallocate(b, 5000, MemoryTag::Activation);
  allocator.trim();
  EXPECT_EQ(allocator.statistics().reserved, 0u);
}

TEST(Allocator, BlocksSetAsideComeBack) {
  Allocator allocator(make_runtime(kCpu));
  void* a = allocator.allocate(1000, MemoryTag::Activation);
  void* live = allocator.allocate(1000, MemoryTag::Activation);
  allocator.deallocate(a, 1000, MemoryTag::Activation);
  auto aside = allocator.set_aside();
  void* other = allocator.allocate(1000, MemoryTag::Activation);
  EXPECT_NE(other, a) << "a CUDA graph computes there";
  allocator.deallocate(live, 1000, MemoryTag::Activation);
  EXPECT_EQ(allocator.allocate(1000, MemoryTag::Activation), live) << "it was in use";
  aside.reset();
  EXPECT_EQ(allocator.allocate(1000, MemoryTag::Activation), a);
  for (void* data : {a, live, other}) allocator.deallocate(data, 1000, MemoryTag::Activation);
  allocator.trim();
  EXPECT_EQ(allocator.statistics().reserved, 0u);
}

TEST(Allocator, MetaMemoryIsCountedButNeverTouched) {
  Allocator allocator(make_runtime(kMeta));
  size_t huge = size_t{1} << 45;
  void* data = allocator.allocate(huge, MemoryTag::Activation);
  EXPECT_EQ(allocator.statistics().total.current, huge);
  allocator.deallocate(data, huge, MemoryTag::Activation);
}

TEST(Runtime, CudaWithoutCudaSaysWhatToDo) {
  if (cuda_device_count() > 0) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_THROW(make_runtime({DeviceType::Cuda, 0}), Error);
}

}  // namespace
}  // namespace megatron
