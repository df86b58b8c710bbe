#include "megatron/ops/attention.h"

#include <gtest/gtest.h>

#include <limits>

#include "megatron/kernels/cpu/isa_tables.h"
#include "support/attention_reference.h"
#include "support/gradcheck.h"
#include "support/to_doubles.h"

namespace megatron {
namespace {

using testing::gradcheck;
using testing::random_tensor;
using testing::TestWeight;
using testing::to_doubles;

struct Case {
  const char* name;
  int64_t batch = 2, queries = 5, keys = 5, heads = 2, kv_heads = 2, d = 3, dv = 3;
  ops::AttentionOptions options = {};
  bool sinks = false;
  int64_t bias_batch = 0, bias_heads = 0;  // sizes of the bias, none at 0
  std::vector<int32_t> cu_queries = {}, cu_keys = {};
};

ops::AttentionOptions options_of(std::initializer_list<std::function<void(ops::AttentionOptions&)>> changes) {
  ops::AttentionOptions options;
  for (auto& change : changes) change(options);
  return options;
}

std::vector<Case> cases() {
  auto with = [](auto... change) { return options_of({change...}); };
  auto full = [](auto& o) { o.causal = false; };
  auto window = [](auto& o) { o.window_left = 2; };
  auto both_sides = [](auto& o) { o.causal = false, o.window_left = 1, o.window_right = 2; };
  auto cap = [](auto& o) { o.softcap = 0.7; };
  auto drop = [](auto& o) { o.dropout = 0.3, o.dropout_key = {7, 11}; };
  auto scale = [](auto& o) { o.scale = 1.5; };
  return {
      {.name = "causal"},
      {.name = "full", .options = with(full)},
      {.name = "gqa", .heads = 4, .kv_heads = 2, .options = with(scale)},
      {.name = "mqa", .heads = 3, .kv_heads = 1},
      {.name = "one_token", .batch = 1, .queries = 1, .keys = 1},
      {.name = "longer_cache", .queries = 2, .keys = 6},
      {.name = "more_queries_than_keys", .queries = 6, .keys = 4},
      {.name = "window", .queries = 7, .keys = 7, .options = with(window)},
      {.name = "window_both_sides", .queries = 7, .keys = 7, .options = with(both_sides)},
      {.name = "window_longer_cache", .queries = 3, .keys = 8, .heads = 4, .options = with(window)},
      {.name = "softcap", .options = with(cap, scale)},
      {.name = "sinks", .heads = 4, .options = with(), .sinks = true},
      {.name = "sinks_more_queries_than_keys", .queries = 6, .keys = 4, .sinks = true},
      {.name = "wide_values", .d = 2, .dv = 5},
      {.name = "wide_keys", .d = 6, .dv = 2},
      {.name = "dropout", .heads = 4, .options = with(drop)},
      {.name = "bias", .options = with(full), .bias_batch = 2, .bias_heads = 2},
      {.name = "bias_shared_batch", .heads = 4, .bias_batch = 1, .bias_heads = 4},
      {.name = "bias_shared_heads", .heads = 4, .bias_batch = 2, .bias_heads = 1},
      {.name = "bias_shared", .heads = 4, .options = with(cap), .bias_batch = 1, .bias_heads = 1},
      {.name = "packed", .batch = 4, .heads = 4, .cu_queries = {0, 3, 4, 4, 9}},
      {.name = "packed_cache",
       .batch = 2,
       .options = with(window),
       .cu_queries = {0, 2, 5},
       .cu_keys = {0, 6, 9}},
      {.name = "everything",
       .queries = 4,
       .keys = 6,
       .heads = 4,
       .kv_heads = 2,
       .d = 2,
       .dv = 3,
       .options = with(window, cap, drop, scale),
       .sinks = true,
       .bias_batch = 2,
       .bias_heads = 4},
  };
}

// The case's tensors at a size: [q, k, v, (bias)] and [(sinks)].
struct Tensors {
  std::vector<Tensor> inputs, weights;
  ops::AttentionOptions options;

  Tensors(RankContext& ctx, const Case& c, DType dtype = DType::F64) : options(c.options) {
    int64_t query_tokens = c.batch * c.queries, key_tokens = c.batch * c.keys;
    options.batch = c.batch;
    if (!c.cu_queries.empty()) {
      auto cu_keys = c.cu_keys.empty() ? c.cu_queries : c.cu_keys;
      query_tokens = c.cu_queries.back(), key_tokens = cu_keys.back();
      int64_t size = static_cast<int64_t>(cu_keys.size());
      options.cu_queries = ctx.from_vector(c.cu_queries, {size});
      options.cu_keys = ctx.from_vector(cu_keys, {size});
      options.max_queries = query_tokens, options.max_keys = key_tokens;
    }
    inputs = {random_tensor(ctx, {query_tokens, c.heads, c.d}, 1, dtype),
              random_tensor(ctx, {key_tokens, c.kv_heads, c.d}, 2, dtype),
              random_tensor(ctx, {key_tokens, c.kv_heads, c.dv}, 3, dtype)};
    if (c.bias_batch)
      inputs.push_back(random_tensor(ctx, {c.bias_batch, c.bias_heads, c.queries, c.keys}, 4, dtype));
    if (c.sinks) weights.push_back(random_tensor(ctx, {c.heads}, 5, dtype));
  }

  ops::AttentionResult run(RankContext& ctx, const std::vector<Tensor>& x,
                           const std::vector<Weight>& w) const {
    ops::AttentionOptions all = options;
    if (x.size() > 3) all.bias = x[3];
    if (!w.empty()) all.sinks = w[0];
    return ops::attention(ctx, x[0], x[1], x[2], all);
  }
};

TEST(Attention, GradientsMatchDifferences) {
  RankContext ctx(testing::test_device());
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    Tensors t(ctx, c);
    gradcheck(
        ctx,
        [&](RankContext& ctx, const std::vector<Tensor>& x, const std::vector<Weight>& w) {
          return std::vector<Tensor>{t.run(ctx, x, w).o};
        },
        t.inputs, t.weights);
  }
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i]) continue;  // also two equal infinities
    double difference = std::abs(a[i] - b[i]);
    largest =
        std::max(largest, std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference);
  }
  return largest;
}

// Runs a case forward and backward and compares all results with the plain formula.
void compare(RankContext& ctx, const Case& c, DType dtype, double tolerance) {
  SCOPED_TRACE(fmt::format("{} {} with {} queries and {} keys", c.name, dtype, c.queries, c.keys));
  Tensors t(ctx, c, dtype);
  std::vector<std::unique_ptr<TestWeight>> weights;
  std::vector<Weight> trainable;
  for (const Tensor& w : t.weights) {
    weights.push_back(std::make_unique<TestWeight>(ctx, w));
    trainable.push_back(weights.back()->get());
  }
  Tape tape(ctx);
  std::vector<Tensor> watched;
  for (const Tensor& x : t.inputs) watched.push_back(tape.watch(x));
  ops::AttentionResult result;
  {
    TapeScope scope(ctx, &tape);
    result = t.run(ctx, watched, trainable);
  }
  Tensor grad = random_tensor(ctx, result.o.shape(), 9, dtype);
  tape.backward(ctx, result.o, grad);

  testing::AttentionReference reference;
  reference.q = to_doubles(ctx, t.inputs[0]), reference.k = to_doubles(ctx, t.inputs[1]);
  reference.v = to_doubles(ctx, t.inputs[2]), reference.grad_o = to_doubles(ctx, grad);
  if (c.bias_batch) reference.bias = to_doubles(ctx, t.inputs[3]);
  if (c.sinks) reference.sinks = to_doubles(ctx, t.weights[0]);
  reference.heads = c.heads, reference.kv_heads = c.kv_heads, reference.d = c.d, reference.dv = c.dv;
  reference.bias_batch = c.bias_batch, reference.bias_heads = c.bias_heads;
  const ops::AttentionOptions& o = t.options;
  reference.scale = o.scale > 0 ? o.scale : 1 / std::sqrt(static_cast<double>(c.d));
  reference.causal = o.causal, reference.window_left = o.window_left, reference.window_right = o.window_right;
  reference.softcap = o.softcap, reference.dropout = o.dropout, reference.dropout_key = o.dropout_key;
  std::vector<int32_t> cu_queries = c.cu_queries, cu_keys = c.cu_keys.empty() ? c.cu_queries : c.cu_keys;
  for (int64_t b = 0; c.cu_queries.empty() && b <= c.batch; ++b) {
    cu_queries.push_back(static_cast<int32_t>(b * c.queries));
    cu_keys.push_back(static_cast<int32_t>(b * c.keys));
  }
  reference.run(cu_queries, cu_keys);
  EXPECT_LE(largest_difference(to_doubles(ctx, result.o), reference.o), tolerance);
  EXPECT_LE(largest_difference(to_doubles(ctx, result.lse), reference.lse), 4 * tolerance);
  double rounding = dtype == DType::F64 ? 1 : 4;  // gradients are larger than outputs
  EXPECT_LE(largest_difference(to_doubles(ctx, tape.grad(watched[0])), reference.dq), rounding * tolerance);
  EXPECT_LE(largest_difference(to_doubles(ctx, tape.grad(watched[1])), reference.dk), rounding * tolerance);
  EXPECT_LE(largest_difference(to_doubles(ctx, tape.grad(watched[2])), reference.dv_grad),
            rounding * tolerance);
  if (c.bias_batch) {
    EXPECT_LE(largest_difference(to_doubles(ctx, tape.grad(watched[3])), reference.dbias),
              rounding * tolerance);
  }
  if (c.sinks) {
    EXPECT_LE(largest_difference(to_doubles(ctx, weights[0]->accumulator.main_grad), reference.dsinks),
              4 * rounding * tolerance);
  }
}

void compare_odd_sizes(RankContext& ctx) {
  for (Case c : cases()) {
    if (!c.cu_queries.empty()) continue;
    if (c.options.window_left > 0) c.options.window_left = 20;
    for (auto [queries, keys] :
         {std::pair<int64_t, int64_t>{1, 1}, {33, 33}, {65, 65}, {100, 100}, {7, 150}}) {
      c.queries = queries, c.keys = keys, c.d = 12, c.dv = 20;
      compare(ctx, c, DType::F64, 1e-12);
    }
    compare(ctx, c, DType::F32, 2e-5);
  }
}

// On every instruction set that this machine has, or on the GPU.
TEST(Attention, EqualsThePlainFormulaAtOddSizes) {
  if (RankContext gpu(testing::test_device()); gpu.device.is_cuda()) return compare_odd_sizes(gpu);
  std::vector<KernelTable> tables{cpu::v3::make_table()};
  if (cpu::has_v4()) tables.push_back(cpu::v4::make_table());
  for (const KernelTable& table : tables) {
    RankContext ctx(testing::test_device(), 2);
    ctx.kernels = &table;
    compare_odd_sizes(ctx);
  }
}

TEST(Attention, PackedSequencesOfAllLengths) {
  RankContext ctx(testing::test_device(), 2);
  Case c{.name = "packed",
         .batch = 6,
         .heads = 6,
         .kv_heads = 3,
         .d = 16,
         .dv = 8,
         .cu_queries = {0, 1, 34, 99, 99, 199, 206}};
  compare(ctx, c, DType::F64, 1e-12);
  c.cu_keys = {0, 70, 103, 168, 170, 270, 400};
  compare(ctx, c, DType::F64, 1e-12);
  c.options.window_left = 9;
  compare(ctx, c, DType::F64, 1e-12);
}

TEST(Attention, LongRowsAreSplitDeterministically) {
  Case c{
      .name = "long", .batch = 1, .queries = 1100, .keys = 1100, .heads = 2, .kv_heads = 1, .d = 8, .dv = 8};
  RankContext one(kCpu, 1), two(kCpu, 2);
  compare(two, c, DType::F64, 1e-12);
  std::vector<std::vector<double>> results;
  for (RankContext* ctx : {&one, &two, &two}) {
    Tensors t(*ctx, c, DType::F32);
    Tape tape(*ctx);
    Tensor q = tape.watch(t.inputs[0]), k = tape.watch(t.inputs[1]), v = tape.watch(t.inputs[2]), o;
    {
      TapeScope scope(*ctx, &tape);
      o = t.run(*ctx, {q, k, v}, {}).o;
    }
    tape.backward(*ctx, o, random_tensor(*ctx, o.shape(), 9, DType::F32));
    for (const Tensor& x : {q, k, v}) results.push_back(to_doubles(*ctx, tape.grad(x)));
  }
  for (size_t i = 3; i < results.size(); ++i) EXPECT_EQ(results[i], results[i % 3]) << i;
}

TEST(Attention, NarrowTypesStayWithinTheirRounding) {
  RankContext ctx(testing::test_device(), 2);
  Case c{.name = "narrow", .queries = 70, .keys = 70, .heads = 4, .d = 32, .dv = 32};
  compare(ctx, c, DType::BF16, 2e-2);
  compare(ctx, c, DType::F16, 3e-3);
}

// A fault in the inputs must not vanish in the softmax.
TEST(Attention, NanComesThrough) {
  RankContext ctx(testing::test_device());
  Case c{.name = "nan", .batch = 1, .queries = 40, .keys = 40, .heads = 1, .kv_heads = 1, .d = 16, .dv = 16};
  for (auto [input, dtype] :
       {std::pair{0, DType::F32}, {1, DType::F32}, {2, DType::F32}, {0, DType::BF16}, {1, DType::BF16}}) {
    Tensors t(ctx, c, dtype);
    const Tensor faulty = t.inputs[static_cast<size_t>(input)].view({40, 16}).slice(0, 20, 21).slice(1, 3, 4);
    ctx.kernels->fill(ctx.kernel_context(), {faulty, NAN});
    const auto result = t.run(ctx, t.inputs, {});
    Tensor wide = ctx.empty(result.o.shape(), DType::F32);
    ctx.kernels->copy(ctx.kernel_context(), {result.o, wide});
    auto o = ctx.to_vector<float>(wide);
    EXPECT_TRUE(std::isnan(o[20 * 16 + 3])) << input;
    EXPECT_TRUE(input == 2 || std::isnan(ctx.to_vector<float>(result.lse)[20])) << input;
    // Not into queries that do not see it, but for values: there a weight of 0 times NaN is NaN.
    EXPECT_TRUE(input == 2 || !std::isnan(o[19 * 16 + 3])) << input;
  }
}

TEST(Attention, ReadsStridedInputs) {
  RankContext ctx(testing::test_device());
  Tensor fused = random_tensor(ctx, {6, 3 * 2 * 4}, 1);
  Tensor heads = fused.view({6, 6, 4});
  Tensor q = heads.slice(1, 0, 2), k = heads.slice(1, 2, 4), v = heads.slice(1, 4, 6);
  auto copy = [&](const Tensor& x) {
    Tensor y = ctx.empty(x.shape(), x.dtype());
    ctx.kernels->copy(ctx.kernel_context(), {x, y});
    return y;
  };
  EXPECT_EQ(ctx.to_vector<double>(ops::attention(ctx, q, k, v).o),
            ctx.to_vector<double>(ops::attention(ctx, copy(q), copy(k), copy(v)).o));
}

TEST(Attention, DropoutDependsOnGlobalPlacesAlone) {
  RankContext ctx(testing::test_device());
  Case c{.name = "whole", .batch = 2, .queries = 9, .keys = 9, .heads = 4, .kv_heads = 4};
  c.options.dropout = 0.4, c.options.dropout_key = {3, 5};
  Tensors t(ctx, c);
  Tensor whole = t.run(ctx, t.inputs, {}).o;
  // Heads 2 and 3 of sequence 1 on their own.
  std::vector<Tensor> part;
  for (const Tensor& x : t.inputs) part.push_back(x.slice(0, 9, 18).slice(1, 2, 4));
  ops::AttentionOptions options = t.options;
  options.batch = 1;
  options.offsets = {.batch_begin = 1, .head_begin = 2, .global_heads = 4};
  Tensor alone = ops::attention(ctx, part[0], part[1], part[2], options).o;
  EXPECT_EQ(ctx.to_vector<double>(alone), ctx.to_vector<double>(whole.slice(0, 9, 18).slice(1, 2, 4)));
}

// Twice the tokens take twice the memory, forward and backward: no matrix of queries by keys exists. (With
// few heads the queries are cut into parts, at most 32, each with its own sums for keys and values.)
TEST(Attention, MemoryIsLinearInTheLength) {
  auto peak = [](int64_t tokens) {
    RankContext ctx(testing::test_device(), 2);
    Tape tape(ctx);
    Tensor q = tape.watch(random_tensor(ctx, {tokens, 32, 8}, 1, DType::F32)),
           k = tape.watch(random_tensor(ctx, {tokens, 32, 8}, 2, DType::F32));
    TapeScope scope(ctx, &tape);
    Tensor o = ops::attention(ctx, q, k, k).o;
    tape.backward(ctx, o, o.detach());
    return static_cast<double>(ctx.allocator->statistics().total.peak);
  };
  EXPECT_LT(peak(1024), 2.1 * peak(512));
  EXPECT_LT(peak(1024), 0.2 * 32 * 1024 * 1024 * sizeof(float));
}

TEST(Attention, MetaDeviceAndCost) {
  struct Sum : Tracer {
    double flops[4] = {}, bytes[4] = {};
    void op(const char*, Phase phase, const Cost& cost) override {
      flops[static_cast<int>(phase)] += cost.flops, bytes[static_cast<int>(phase)] += cost.bytes;
    }
  } sum;
  RankContext ctx(kMeta);
  ctx.tracer = &sum;
  Tape tape(ctx);
  Tensor q = tape.watch(ctx.empty({8, 4, 16}, DType::BF16)),
         k = tape.watch(ctx.empty({8, 2, 16}, DType::BF16));
  TapeScope scope(ctx, &tape);
  Tensor o = ops::attention(ctx, q, k, k.detach(), {.causal = false}).o;
  EXPECT_EQ(o.shape(), Shape({8, 4, 16}));
  tape.backward(ctx, o, ctx.empty(o.shape(), o.dtype()));
  EXPECT_EQ(tape.grad(q).shape(), q.shape());
  EXPECT_EQ(sum.flops[0], 4.0 * 8 * 8 * 4 * 16);
  EXPECT_EQ(sum.flops[1], 2.5 * sum.flops[0]);
  EXPECT_GT(sum.bytes[1], sum.bytes[0]);
}

TEST(Attention, RefusesWhatDoesNotFit) {
  RankContext ctx(testing::test_device());
  Tensor q = random_tensor(ctx, {4, 3, 8}, 1), k = random_tensor(ctx, {4, 2, 8}, 2);
  auto message = [&](auto&& f) -> std::string {
    try {
      f();
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(message([&] { ops::attention(ctx, q, k, k); }),
            "attention: 3 query heads cannot share 2 key/value heads evenly");
  EXPECT_NE(message([&] { ops::attention(ctx, k, k, k, {.batch = 3}); }).find("3 sequences of equal length"),
            std::string::npos);
  Tensor cu = ctx.from_vector<int32_t>({0, 4}, {2});
  EXPECT_NE(message([&] { ops::attention(ctx, k, k, k, {.cu_queries = cu}); }).find("max_queries"),
            std::string::npos);
  EXPECT_NE(message([&] { ops::attention(ctx, k, k, q); }).find("do not fit"), std::string::npos);
}

}  // namespace
}  // namespace megatron
