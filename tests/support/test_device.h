#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string_view>

#include "megatron/base/error.h"
#include "megatron/device/runtime.h"

namespace megatron::testing {

inline constexpr Device kGpu{DeviceType::Cuda, 0};

// Where a test computes: on the CPU, or on the GPU with MEGATRON_TEST_DEVICE=cuda. What is expected is the
// same.
inline Device test_device() {
  const char* wanted = std::getenv("MEGATRON_TEST_DEVICE");
  if (!wanted || std::string_view(wanted) == "cpu") return kCpu;
  require(std::string_view(wanted) == "cuda", "MEGATRON_TEST_DEVICE is {}: cpu and cuda are known", wanted);
  return kGpu;
}

// Without the GPU that was asked for, every test of the program is skipped.
class TestDevice final : public ::testing::Environment {
  void SetUp() override {
    if (test_device() == kGpu && cuda_device_count() == 0)
      GTEST_SKIP() << "MEGATRON_TEST_DEVICE=cuda, but there is no usable GPU: NOTHING was tested";
  }
};
inline ::testing::Environment* const kTestDevice = ::testing::AddGlobalTestEnvironment(new TestDevice);

}  // namespace megatron::testing
