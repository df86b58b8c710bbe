#include <gtest/gtest.h>

#include "megatron/ops/attention.h"
#include "support/golden.h"
#include "support/gradcheck.h"

// Attention with its gradients against PyTorch's explicit score matrix.
namespace megatron {
namespace {

using testing::golden_json;
using testing::golden_tensors;
using testing::is_close;
using testing::kAttention;
using testing::kGradient;
using testing::TestWeight;
using testing::to_device;

class GoldenAttention : public ::testing::TestWithParam<DType> {};

INSTANTIATE_TEST_SUITE_P(Dtypes, GoldenAttention, ::testing::Values(DType::F32, DType::F64),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST_P(GoldenAttention, Cases) {
  RankContext ctx(testing::test_device());
  const SafetensorsFile golden = golden_tensors("numerics", "attention");
  const Json settings = golden_json("numerics", "attention");
  for (const auto& [name, c] : settings.at("cases").as_object()) {
    const auto load = [&, &name = name](const char* what) {
      return to_device(ctx, golden.tensor(fmt::format("{}.{}", name, what)), GetParam());
    };
    const auto flat = [](const Tensor& x) { return x.view({x.size(0) * x.size(1), x.size(2), x.size(3)}); };
    ops::AttentionOptions options;
    options.batch = c.at("b").as_int();
    options.scale = c.at("scale").as_double();
    options.causal = c.at("causal").as_bool();
    options.softcap = c.at("softcap").as_double();
    if (!c.at("window").is_null()) {  // the query itself and window − 1 keys before it
      options.window_left = c.at("window").as_int() - 1;
      if (!options.causal) options.window_right = c.at("window").as_int() - 1;
    }
    if (!c.at("cu_seqlens").is_null()) {
      std::vector<int32_t> ends;
      for (const Json& end : c.at("cu_seqlens").as_array())
        ends.push_back(static_cast<int32_t>(end.as_int()));
      options.batch = static_cast<int64_t>(ends.size()) - 1;
      for (size_t i = 1; i < ends.size(); ++i)
        options.max_queries = std::max<int64_t>(options.max_queries, ends[i] - ends[i - 1]);
      options.max_keys = options.max_queries;
      options.cu_queries = options.cu_keys = ctx.from_vector(ends, {static_cast<int64_t>(ends.size())});
    }
    std::unique_ptr<TestWeight> sinks;
    if (c.at("sink").as_bool()) {
      sinks = std::make_unique<TestWeight>(ctx, load("sink"));
      options.sinks = sinks->get();
    }

    Tape tape(ctx);
    TapeScope scope(ctx, &tape);
    const Tensor q = tape.watch(flat(load("q"))), k = tape.watch(flat(load("k"))),
                 v = tape.watch(flat(load("v")));
    const ops::AttentionResult result = ops::attention(ctx, q, k, v, options);
    EXPECT_TRUE(is_close(ctx, name + ".o", result.o, golden.tensor(name + ".o"), kAttention));

    // The reference has lse as [batch, heads, queries].
    const int64_t batch = c.at("b").as_int(), heads = c.at("hq").as_int(), queries = c.at("sq").as_int();
    const Tensor lse = result.lse.view({heads, batch, queries}).transpose(0, 1);
    EXPECT_TRUE(is_close(ctx, name + ".lse", lse, golden.tensor(name + ".lse"), kAttention));

    tape.backward(ctx, result.o, flat(load("do")));
    EXPECT_TRUE(is_close(ctx, name + ".dq", tape.grad(q), golden.tensor(name + ".dq"), kGradient));
    EXPECT_TRUE(is_close(ctx, name + ".dk", tape.grad(k), golden.tensor(name + ".dk"), kGradient));
    EXPECT_TRUE(is_close(ctx, name + ".dv", tape.grad(v), golden.tensor(name + ".dv"), kGradient));
    if (sinks) {
      EXPECT_TRUE(is_close(ctx, name + ".dsink", sinks->accumulator.main_grad, golden.tensor(name + ".dsink"),
                           kGradient));
    }
  }
}

}  // namespace
}  // namespace megatron
