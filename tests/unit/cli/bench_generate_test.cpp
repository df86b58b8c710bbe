#include <gtest/gtest.h>

#include "megatron/base/json.h"
#include "unit/cli/run_command.h"

namespace megatron {
namespace {

TEST(BenchGenerate, OnACpu) {
  const std::vector<std::string> common = {"bench", "generate", "gpt-10m", "--device", "cpu", "--batch",
                                           "3",     "--prompt", "5",       "--tokens", "4",   "--json"};
  auto run = [&](std::vector<std::string> more) {
    more.insert(more.begin(), common.begin(), common.end());
    const Outcome outcome = run_command(more);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return Json::parse(outcome.out);
  };
  const Json plain = run({}), narrow = run({"--precision", "bf16"}), int8 = run({"--quantization", "int8"}),
             int4 = run({"--quantization", "int4"});
  EXPECT_NEAR(plain.at("tokens_per_second").as_double() * plain.at("step_ms").as_double(), 3000, 1);
  EXPECT_GT(plain.at("percent_of_read").as_double(), 0);
  const double bytes = plain.at("gigabytes_per_step").as_double();
  EXPECT_NEAR(narrow.at("gigabytes_per_step").as_double() / bytes, 0.5, 0.01);
  EXPECT_NEAR(int8.at("gigabytes_per_step").as_double() / bytes, 0.26, 0.02);  // norms and the cache stay
  EXPECT_NEAR(int4.at("gigabytes_per_step").as_double() / bytes, 0.145, 0.02);
  const Json shared = run({"--tensor-model-parallel-size", "2"});
  EXPECT_EQ(shared.find("percent_of_read"), nullptr);
  EXPECT_NEAR(shared.at("gigabytes_per_step").as_double() / bytes, 1, 0.02);
}

TEST(BenchGenerate, BadUseIsRefusedWithAdvice) {
  const auto says = [](std::vector<std::string> args, int code, const char* text) {
    args.insert(args.begin(), {"bench", "generate", "gpt-10m", "--device", "cpu"});
    const Outcome outcome = run_command(args);
    EXPECT_EQ(outcome.code, code) << outcome.err;
    EXPECT_NE(outcome.err.find(text), std::string::npos) << outcome.err;
  };
  says({"--tokens", "300"}, 2, "lower --prompt or --tokens");
  says({"--precision", "fp8"}, 2, "neither fp32 nor bf16");
  says({"--quantization", "int2"}, 1, "use --quantization int8");
  const Outcome serve = run_command({"bench", "serve"});
  EXPECT_EQ(serve.code, 2);
  EXPECT_NE(serve.err.find("--url is missing"), std::string::npos);
}

}  // namespace
}  // namespace megatron
