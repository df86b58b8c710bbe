#include <gtest/gtest.h>

#include "megatron/base/json.h"
#include "megatron/cli/bench/bench_ops_cases.h"
#include "unit/cli/run_command.h"

namespace megatron {
namespace {

Outcome run(std::vector<std::string> args) {
  args.insert(args.begin(), {"bench", "ops", "--tokens", "4", "--repeat", "1", "--threads", "1"});
  return run_command(std::move(args));
}

TEST(BenchOps, JsonHasRowsAndCeilings) {
  const Outcome outcome = run({"--json", "--filter", "linear 4x256->256"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json json = Json::parse(outcome.out);
  EXPECT_EQ(json.at("machine").at("threads").as_int(), 1);
  EXPECT_GT(json.at("ceilings").at("copy_gbs").as_double(), 0);
  EXPECT_EQ(json.at("overhead").size(), 0u);
  const Json& rows = json.at("ops");
  ASSERT_EQ(rows.size(), 4u);  // two dtypes, forward alone and with backward
  for (const Json& row : rows.as_array()) {
    EXPECT_EQ(row.at("op").as_string(), "linear");
    EXPECT_EQ(row.at("shape").as_string(), "4x256->256");
    const bool backward = row.at("pass").as_string() == "forward+backward";
    const double flops = row.at("gflops").as_double() * 1e9 * row.at("ms").as_double() * 1e-3;
    EXPECT_NEAR(flops, (backward ? 6.0 : 2.0) * 4 * 256 * 256, 1.0);
    EXPECT_GT(row.at("percent").as_double(), 0);
  }
}

TEST(BenchOps, TableAndOverhead) {
  const Outcome outcome = run({"--filter", "overhead"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("one element, ns per op"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("\nmul "), std::string::npos) << outcome.out;
  EXPECT_EQ(outcome.out.find("rmsnorm"), std::string::npos) << outcome.out;
  // The host must not hold a GPU up; on a machine that others use too, many times slower than alone.
  const size_t at = outcome.out.find("kernels that do nothing: ");
  ASSERT_NE(at, std::string::npos) << outcome.out;
#if defined(NDEBUG) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(std::stod(outcome.out.substr(at + 25)), 2.0) << outcome.out;
#endif
}

TEST(BenchOps, RefusesWhatItDoesNotKnow) {
  EXPECT_EQ(run({"--fliter", "x"}).code, 2);
  EXPECT_EQ(run({"linear"}).code, 2);
  EXPECT_EQ(run({"--filter", "nothing has this"}).code, 2);
  EXPECT_EQ(run({"--repeat", "often"}).err,
            "megatron: bench ops: --repeat needs a whole number, not 'often'\n");
}

// Every case runs forward and backward; the meta device does it without the arithmetic.
TEST(BenchOps, CasesRunOnMeta) {
  RankContext ctx(kMeta);
  for (const BenchCase& one : bench_cases(4)) {
    SCOPED_TRACE(one.op + " " + one.shape);
    BenchOp op = one.make(ctx);
    Tape tape(ctx);
    std::vector<Tensor> inputs, outputs, grads;
    for (const Tensor& input : op.inputs) inputs.push_back(tape.watch(input));
    {
      TapeScope scope(ctx, &tape);
      outputs = op.run(ctx, inputs);
    }
    if (!op.has_backward) continue;
    for (const Tensor& output : outputs) grads.push_back(ctx.empty_like(output));
    tape.backward_data(ctx, outputs, grads);
    for (const Tensor& input : inputs) EXPECT_TRUE(tape.grad(input).defined());
  }
}

}  // namespace
}  // namespace megatron
