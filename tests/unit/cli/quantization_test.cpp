#include <gtest/gtest.h>

#include "megatron/base/error.h"
#include "megatron/cli/common/model_arguments.h"
#include "megatron/kernels/narrow_weight.h"

namespace megatron {
namespace {

std::string refusal(const std::string& quantization, const Config& config,
                    const std::vector<GpuFacts>& gpus) {
  try {
    quantized_dtype(quantization, config, gpus);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

const std::vector<GpuFacts> kHopper = {{.compute_capability = 90}}, kAmpere = {{.compute_capability = 80}},
                            kNone = {};

TEST(Quantization, NamesTheFormatOfWeights) {
  Config config;
  config.precision.params_dtype = "bf16";
  EXPECT_EQ(quantized_dtype("", config), std::nullopt);
  EXPECT_EQ(quantized_dtype("none", config), std::nullopt);
  EXPECT_EQ(quantized_dtype("int8", config, kNone), DType::I8);
  EXPECT_EQ(quantized_dtype("int4", config, kNone), kInt4);
  EXPECT_EQ(quantized_dtype("int8", config, kAmpere), DType::I8);
  EXPECT_EQ(quantized_dtype("fp8", config, kHopper), DType::F8E4M3);
}

// What is refused says what is taken instead, and that is taken.
TEST(Quantization, RefusalsGiveAdviceThatIsTaken) {
  Config config;
  config.precision.params_dtype = "bf16";
  const auto advises = [&](const char* asked, const std::vector<GpuFacts>& gpus,
                           const std::vector<std::string>& instead, const char* text) {
    const std::string message = refusal(asked, config, gpus);
    EXPECT_NE(message.find(text), std::string::npos) << message;
    for (const std::string& other : instead) EXPECT_EQ(refusal(other, config, gpus), "") << other;
  };
  advises("int4", kHopper, {"int8", "fp8"}, "use --quantization int8 or fp8 on a GPU");
  advises("int4", kAmpere, {"int8"}, "use --quantization int8 on a GPU");
  advises("fp8", kAmpere, {"int8"}, "use --quantization int8, or leave it out");
  advises("fp8", kNone, {"int8", "int4"}, "on the CPU use --quantization int8 or int4");
  advises("int2", kNone, {"int8", "int4"}, "use --quantization int8");
}

}  // namespace
}  // namespace megatron
