#include "unit/cuda/twin.h"

namespace megatron::testing {
namespace {

class CudaRuntimeTest : public Twin {};

TEST_F(CudaRuntimeTest, CopiesAndEvents) {
  std::vector<float> values(100000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  Tensor x = gpu().from_vector(values, {100000});
  Stream side(gpu().runtime);
  Event ready(gpu().runtime);
  ready.record(gpu().stream);
  ready.wait(side);
  std::vector<float> back(values.size());
  gpu().runtime->copy_to_host(back.data(), x.raw(), x.bytes(), side.native());
  EXPECT_EQ(back, values);
  EXPECT_TRUE(ready.done());
}

TEST_F(CudaRuntimeTest, EveryKernelExists) {
  KernelTable::visit(*gpu().kernels,
                     [](const char* name, auto kernel) { EXPECT_NE(kernel, nullptr) << name; });
}

TEST_F(CudaRuntimeTest, RefusalsHelp) {
  try {
    gpu().empty({int64_t{1} << 44}, DType::F64);
    FAIL() << "allocated 128 TiB";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("out of GPU memory"), std::string::npos) << error.what();
  }
  EXPECT_THROW(make_runtime({DeviceType::Cuda, 99}), ConfigError);
}

TEST_F(CudaRuntimeTest, FreedMemoryIsReusedInStreamOrder) {
  RankContext ctx(Device{DeviceType::Cuda, 0});
  Tensor sum = ctx.zeros({1 << 20}, DType::F32);
  for (int i = 1; i <= 20; ++i) {
    Tensor term = ctx.full({1 << 20}, DType::F32, i);  // freed before the sum below has run
    ctx.kernels->axpby(ctx.kernel_context(), {.alpha = 1, .a = sum, .beta = 1, .b = term, .out = sum});
  }
  auto values = ctx.to_vector<float>(sum);
  for (float v : values) ASSERT_EQ(v, 210.f);
  EXPECT_LE(ctx.allocator->statistics().device_allocations, 3u);
}

// Must hold on a machine without a driver too.
TEST(CudaBuild, StartsWithoutADriver) {
  int count = cuda_device_count();
  EXPECT_GE(count, 0);
  if (count == 0) {
    EXPECT_THROW(make_runtime({DeviceType::Cuda, 0}), Error);
  }
}

}  // namespace
}  // namespace megatron::testing
