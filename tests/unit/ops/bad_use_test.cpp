// What every op says when it is given tensors that do not fit: its name, the shapes, dtype or device.
#include <gtest/gtest.h>

#include "megatron/ops/activation.h"
#include "megatron/ops/attention.h"
#include "megatron/ops/cross_entropy.h"
#include "megatron/ops/dropout.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/embedding.h"
#include "megatron/ops/index.h"
#include "megatron/ops/linear.h"
#include "megatron/ops/matmul.h"
#include "megatron/ops/moe.h"
#include "megatron/ops/norm.h"
#include "megatron/ops/qkv.h"
#include "megatron/ops/quantize.h"
#include "megatron/ops/reduce.h"
#include "megatron/ops/rope.h"
#include "megatron/ops/shape.h"
#include "megatron/ops/softmax.h"
#include "support/test_device.h"

namespace megatron {
namespace {

using Tensors = std::vector<Tensor>;

struct Given {
  Shape shape;
  DType dtype = DType::F32;
};

struct Row {
  const char* op;
  std::vector<Given> good;
  size_t victim;    // the tensor that is made wrong
  Shape bad_shape;  // how
  std::vector<Shape>
      named;  // the other shapes that the message must name: of its partner, or what it must be
  DType bad_dtype;
  std::function<void(RankContext&, const Tensors&)> run;
};

Tensors make(RankContext& ctx, const Row& row, size_t victim, const Given& wrong, RankContext& other) {
  Tensors tensors;
  for (size_t i = 0; i < row.good.size(); ++i) {
    const Given& given = i == victim ? wrong : row.good[i];
    tensors.push_back((i == victim ? other : ctx).zeros(given.shape, given.dtype));
  }
  return tensors;
}

std::string refusal(RankContext& ctx, const Row& row, const Tensors& tensors) {
  try {
    row.run(ctx, tensors);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::vector<Row> rows() {
  using C = RankContext&;
  using X = const Tensors&;
  constexpr DType f32 = DType::F32, f64 = DType::F64, i64 = DType::I64, i32 = DType::I32;
  return {
      {"linear",
       {{{3, 4}}, {{5, 4}}},
       1,
       {5, 6},
       {{3, 4}},
       f64,
       [](C c, X x) { ops::linear(c, x[0], {x[1]}); }},
      {"linear",
       {{{3, 4}}, {{5, 4}}, {{5}}},
       2,
       {4},
       {{5}},
       f64,
       [](C c, X x) { ops::linear(c, x[0], {x[1]}, {x[2]}); }},
      {"add_bias", {{{3, 4}}, {{4}}}, 1, {3}, {{4}}, f64, [](C c, X x) { ops::add_bias(c, x[0], {x[1]}); }},
      {"norm", {{{3, 4}}, {{4}}}, 1, {3}, {{4}}, f64, [](C c, X x) { ops::norm(c, x[0], {x[1]}); }},
      {"norm",
       {{{3, 4}}, {{3, 4}}, {{4}}},
       1,
       {4, 4},
       {{3, 4}},
       f64,
       [](C c, X x) { ops::norm_with_residual(c, x[0], x[1], {x[2]}); }},
      {"matmul",
       {{{3, 4}}, {{4, 5}}},
       1,
       {3, 5},
       {{3, 4}},
       f64,
       [](C c, X x) { ops::matmul(c, x[0], x[1]); }},
      {"grouped_linear",
       {{{6, 4}}, {{2, 5, 4}}, {{3}, i32}},
       1,
       {2, 5, 3},
       {{6, 4}},
       f64,
       [](C c, X x) { ops::call_linear(c, x[0], {x[1]}, {.offsets = x[2]}); }},
      {"grouped_linear",
       {{{6, 4}}, {{2, 5, 4}}, {{3}, i32}},
       2,
       {2},
       {{3}},
       i64,
       [](C c, X x) { ops::call_linear(c, x[0], {x[1]}, {.offsets = x[2]}); }},
      {"activation",
       {{{3, 4}}, {{4}}},
       1,
       {3},
       {{4}},
       f64,
       [](C c, X x) { ops::activation(c, Unary::Silu, x[0], {x[1]}); }},
      {"gated_activation",
       {{{3, 4}}, {{4}}},
       1,
       {2},
       {{4}},
       f64,
       [](C c, X x) { ops::gated_activation(c, {}, x[0], {x[1]}); }},
      {"dropout",
       {{{3, 4}}, {{3, 4}}},
       1,
       {3, 5},
       {{3, 4}},
       f64,
       [](C c, X x) { ops::dropout(c, x[0], 0.5, {}, {}, x[1]); }},
      {"add", {{{3, 4}}, {{3, 4}}}, 1, {3, 5}, {{3, 4}}, f64, [](C c, X x) { ops::add(c, x[0], x[1]); }},
      {"sub", {{{3, 4}}, {{4}}}, 1, {3}, {{3, 4}}, f64, [](C c, X x) { ops::sub(c, x[0], x[1]); }},
      {"mul", {{{3, 4}}, {{3, 1}}}, 1, {2, 1}, {{3, 4}}, f64, [](C c, X x) { ops::mul(c, x[0], x[1]); }},
      {"div", {{{3, 4}}, {{3, 4}}}, 1, {4, 3}, {{3, 4}}, f64, [](C c, X x) { ops::div(c, x[0], x[1]); }},
      {"axpby",
       {{{3, 4}}, {{3, 4}}},
       1,
       {4},
       {{3, 4}},
       f64,
       [](C c, X x) { ops::axpby(c, 1, x[0], 1, x[1]); }},
      {"compare",
       {{{3, 4}}, {{3, 4}}},
       1,
       {5},
       {{3, 4}},
       i64,
       [](C c, X x) { ops::compare(c, Comparison::Less, x[0], x[1]); }},
      {"where",
       {{{3, 4}, DType::Bool}, {{3, 4}}, {{3, 4}}},
       2,
       {3, 5},
       {{3, 4}},
       f64,
       [](C c, X x) { ops::where(c, x[0], x[1], x[2]); }},
      {"where",
       {{{3, 4}, DType::Bool}, {{3, 4}}, {{3, 4}}},
       0,
       {2, 4},
       {{3, 4}},
       f32,
       [](C c, X x) { ops::where(c, x[0], x[1], x[2]); }},
      {"concat",
       {{{3, 4}}, {{3, 2}}},
       1,
       {4, 2},
       {{3, 4}},
       f64,
       [](C c, X x) {
         ops::concat(c, Tensors{x[0], x[1]}, 1);
       }},
      {"sum", {{{3, 4}}}, 0, {3}, {}, i64, [](C c, X x) { ops::sum(c, x[0], 1); }},
      {"mean", {{{3, 4}}}, 0, {3}, {}, i64, [](C c, X x) { ops::mean(c, x[0], 1); }},
      {"max", {{{3, 4}}}, 0, {3, 0}, {}, i64, [](C c, X x) { ops::max(c, x[0], 1); }},
      {"min", {{{3, 4}}}, 0, {3}, {}, i64, [](C c, X x) { ops::min(c, x[0], 1); }},
      {"softmax", {{{3, 4}}}, 0, {}, {}, i64, [](C c, X x) { ops::softmax(c, x[0]); }},
      {"rope",
       {{{3, 2, 8}}, {{3, 4}}, {{3, 4}}},
       1,
       {5, 4},
       {{3, 2, 8}},
       f64,
       [](C c, X x) {
         ops::rope(c, x[0], {x[1], x[2]});
       }},
      {"split_qkv",
       {{{3, 32}}, {{3, 2}}, {{3, 2}}},
       0,
       {3, 30},
       {{3, 32}},
       f32,
       [](C c, X x) {
         ops::split_qkv(c, x[0], 4, 2, 4, {x[1], x[2]});
       }},
      {"split_qkv",
       {{{3, 32}}, {{3, 2}}, {{3, 2}}},
       2,
       {2, 2},
       {{3, 2}},
       f64,
       [](C c, X x) {
         ops::split_qkv(c, x[0], 4, 2, 4, {x[1], x[2]});
       }},
      {"attention",
       {{{6, 4, 8}}, {{6, 2, 8}}, {{6, 2, 8}}},
       1,
       {6, 2, 4},
       {{6, 4, 8}, {6, 2, 8}},
       f64,
       [](C c, X x) { ops::attention(c, x[0], x[1], x[2]); }},
      {"attention",
       {{{6, 4, 8}}, {{6, 2, 8}}, {{4}}},
       2,
       {3},
       {},
       f64,
       [](C c, X x) { ops::attention(c, x[0], x[1], x[1], {.sinks = {x[2]}}); }},
      {"embedding",
       {{{5, 4}}, {{3}, i64}},
       1,
       {3, 1},
       {},
       i32,
       [](C c, X x) { ops::embedding(c, {x[0]}, x[1]); }},
      {"cross_entropy",
       {{{3, 5}}, {{3}, i64}},
       1,
       {2},
       {{3}},
       i32,
       [](C c, X x) { ops::cross_entropy(c, x[0], x[1]); }},
      {"linear_cross_entropy",
       {{{3, 4}}, {{5, 4}}, {{3}, i64}},
       1,
       {5, 3},
       {{3, 4}},
       f64,
       [](C c, X x) { ops::linear_cross_entropy(c, x[0], {x[1]}, x[2]); }},
      {"gather_rows",
       {{{3, 4}}, {{2}, i64}},
       1,
       {2, 1},
       {},
       i32,
       [](C c, X x) { ops::gather_rows(c, x[0], x[1]); }},
      {"scatter_add_rows",
       {{{3, 4}}, {{3}, i64}},
       0,
       {2, 4},
       {},
       i64,
       [](C c, X x) { ops::scatter_add_rows(c, x[0], x[1], 5); }},
      {"gather_columns",
       {{{3, 4}}, {{3, 2}, i64}},
       1,
       {2, 2},
       {{3, 4}},
       i32,
       [](C c, X x) { ops::gather_columns(c, x[0], x[1]); }},
      {"top_k", {{{3, 4}}}, 0, {3, 1}, {}, i64, [](C c, X x) { ops::top_k(c, x[0], 2); }},
      {"expert_sort", {{{3, 2}, i64}}, 0, {6}, {}, i32, [](C c, X x) { ops::expert_sort(c, x[0], 4); }},
      {"permute",
       {{{3, 4}}, {{3, 2}, i64}},
       0,
       {4, 4},
       {},
       i64,
       [](C c, X x) { ops::permute(c, x[0], ops::expert_sort(c, x[1], 4)); }},
      {"unpermute",
       {{{6, 4}}, {{3, 2}, i64}, {{3, 2}}},
       2,
       {3, 1},
       {{3, 2}},
       i64,
       [](C c, X x) { ops::unpermute(c, x[0], ops::expert_sort(c, x[1], 4), x[2]); }},
      {"quantize", {{{3, 4}}}, 0, {3}, {}, i64, [](C c, X x) { ops::quantize(c, x[0], DType::F8E4M3); }},
      {"view",
       {{{3, 4}}},
       0,
       {3, 5},
       {{4, 3}},
       f32,
       [](C c, X x) {
         ops::view(c, x[0], {4, 3});
       }},
      {"expand",
       {{{3, 1}}},
       0,
       {3, 2},
       {{3, 4}},
       f32,
       [](C c, X x) {
         ops::expand(c, x[0], {3, 4});
       }},
      {"slice", {{{3, 4}}}, 0, {3, 2}, {}, f32, [](C c, X x) { ops::slice(c, x[0], 1, 1, 3); }},
      {"chunk", {{{3, 4}}}, 0, {3, 5}, {}, f32, [](C c, X x) { ops::chunk(c, x[0], 2, 1); }},
      {"split",
       {{{3, 4}}},
       0,
       {3, 5},
       {},
       f32,
       [](C c, X x) {
         ops::split(c, x[0], std::vector<int64_t>{1, 3}, 1);
       }},
  };
}

TEST(BadUse, FittingTensorsAreTaken) {
  RankContext ctx(testing::test_device());
  for (const Row& row : rows())
    EXPECT_EQ(refusal(ctx, row, make(ctx, row, row.good.size(), {}, ctx)), "") << row.op;
}

void expect_named(const std::string& message, const Row& row, const std::string& what) {
  EXPECT_NE(message.find(row.op), std::string::npos) << row.op << " said: " << message;
  EXPECT_NE(message.find(what), std::string::npos) << row.op << " does not name " << what << ": " << message;
}

TEST(BadUse, AWrongShapeIsNamedWithItsPartner) {
  RankContext ctx(testing::test_device());
  for (const Row& row : rows()) {
    Given wrong{row.bad_shape, row.good[row.victim].dtype};
    std::string message = refusal(ctx, row, make(ctx, row, row.victim, wrong, ctx));
    expect_named(message, row, fmt::format("{}", row.bad_shape));
    for (const Shape& shape : row.named) expect_named(message, row, fmt::format("{}", shape));
  }
}

TEST(BadUse, AWrongDtypeIsNamed) {
  RankContext ctx(testing::test_device());
  for (const Row& row : rows()) {
    Given wrong{row.good[row.victim].shape, row.bad_dtype};
    if (wrong.dtype == row.good[row.victim].dtype) continue;  // moves values of any dtype
    std::string message = refusal(ctx, row, make(ctx, row, row.victim, wrong, ctx));
    expect_named(message, row, fmt::format("{}", row.bad_dtype));
    expect_named(message, row, fmt::format("{}", wrong.shape));
  }
}

TEST(BadUse, ATensorOfAnotherDeviceIsNamed) {
  RankContext ctx(testing::test_device()), meta(kMeta);
  for (const Row& row : rows()) {
    std::string message = refusal(ctx, row, make(ctx, row, row.victim, row.good[row.victim], meta));
    expect_named(message, row, fmt::format("{}", kMeta));
    expect_named(message, row, fmt::format("{}", ctx.device));
  }
}

TEST(BadUse, AFreedTensorIsNamed) {
  RankContext ctx(testing::test_device());
  for (const Row& row : rows()) {
    Tensors tensors = make(ctx, row, row.good.size(), {}, ctx);
    tensors[row.victim].storage().free();
    std::string message = refusal(ctx, row, tensors);
    expect_named(message, row, fmt::format("{}", row.good[row.victim].shape));
    expect_named(message, row, "memory was given back");
  }
}

template <class F>
void expect_refused(F&& f, std::initializer_list<const char*> words) {
  try {
    f();
    ADD_FAILURE() << "not refused: " << *words.begin();
  } catch (const Error& error) {
    for (const char* word : words)
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << word << ": " << error.what();
  }
}

// Below zero, and one beyond the end.
TEST(BadUse, IndicesOutsideAreNamedWithTheSize) {
  RankContext ctx;  // no other device looks at ids before it uses them
  Tensor x = ctx.zeros({2, 5}, DType::F32), table = ctx.zeros({4, 3}, DType::F32);
  for (auto [id, text] : {std::pair<int64_t, const char*>{-1, "-1"}, {5, "5"}}) {
    Tensor pair = ctx.from_vector<int64_t>({1, id}, {2}), columns = pair.view({2, 1});
    expect_refused([&] { ops::gather_columns(ctx, x, columns); }, {"gather_columns", text, "[0, 5)"});
    expect_refused([&] { ops::cross_entropy(ctx, x, pair); }, {"cross_entropy", text, "[0, 5)", "-100"});
    expect_refused([&] { ops::embedding(ctx, {table}, pair); }, {"embedding", text, "[0, 4)"});
    // This rank's rows are 4 to 7 of 10: only what is outside the whole is refused.
    if (id == 5) {
      EXPECT_NO_THROW(ops::embedding(ctx, {table}, pair, 4, 10));
    } else {
      expect_refused([&] { ops::embedding(ctx, {table}, pair, 4, 10); }, {"embedding", text, "[0, 10)"});
    }
    Tensor hidden = ctx.zeros({2, 3}, DType::F32);
    expect_refused([&] { ops::linear_cross_entropy(ctx, hidden, {table}, pair); },
                   {"linear_cross_entropy", text, "[0, 4)"});
  }
  expect_refused([&] { ops::embedding(ctx, {table}, ctx.from_vector<int64_t>({5}, {1}), 4); },
                 {"embedding", "vocab_size"});
  EXPECT_NO_THROW(ops::cross_entropy(ctx, x, ctx.from_vector<int64_t>({-100, 4}, {2})));
}

TEST(BadUse, QuantizingWhatIsOnTheTapeIsRefusedWithAdvice) {
  RankContext ctx(testing::test_device());
  Tape tape(ctx);
  TapeScope scope(ctx, &tape);
  Tensor x = tape.watch(ctx.zeros({2, 4}, DType::F32));
  expect_refused([&] { ops::quantize(ctx, x, DType::F8E4M3); }, {"quantize", "detach()"});
  EXPECT_NO_THROW(ops::quantize(ctx, x.detach(), DType::F8E4M3));
}

}  // namespace
}  // namespace megatron
