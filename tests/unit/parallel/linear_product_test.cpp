// Every combination of what a linear may be: where its rows come from × an activation before it × number
// format × epilogue × adapter × when the weight's gradient is made.
#include <gtest/gtest.h>

#include "megatron/ops/linear.h"
#include "megatron/parallel/tensor/linear_route.h"
#include "support/low_rank_adapter.h"
#include "support/ranks_gradcheck.h"
#include "support/to_doubles.h"

namespace megatron::testing {
namespace {

enum class Rows { local, whole, gathered, gathered_blocks, summed, summed_blocks, experts };
constexpr Rows kRows[] = {Rows::local,  Rows::whole,         Rows::gathered, Rows::gathered_blocks,
                          Rows::summed, Rows::summed_blocks, Rows::experts};
constexpr int64_t kExperts = 3;
enum class Before { nothing, gate, function };
enum class Adapted { no, low_rank, scaled };

struct Combination {
  Rows rows = Rows::local;
  Before before = Before::nothing;
  bool keeps = true, epilogue = false, defers = false;
  Adapted adapted = Adapted::no;

  bool sums() const { return rows == Rows::summed || rows == Rows::summed_blocks; }
  bool splits_input() const { return rows == Rows::gathered || rows == Rows::gathered_blocks; }
  bool grouped() const { return rows == Rows::experts; }
  bool biased() const { return epilogue && !sums() && !grouped(); }  // a bias goes behind a sum
  int64_t inputs() const { return before == Before::gate ? 2 : 1; }
};

template <class F>
void for_each_combination(F&& f) {
  for (Rows rows : kRows)
    for (Before before : {Before::nothing, Before::gate, Before::function})
      for (bool keeps : {true, false})
        for (Adapted adapted : {Adapted::no, Adapted::low_rank, Adapted::scaled})
          for (bool epilogue : {false, true})
            for (bool defers : {false, true})
              if ((keeps || before != Before::nothing) && (rows != Rows::experts || adapted == Adapted::no) &&
                  (adapted != Adapted::low_rank || (before == Before::nothing && !epilogue)))
                f({rows, before, keeps, epilogue, defers, adapted});
}

std::string describe(const Combination& c) {
  constexpr const char* rows[] = {
      "local", "whole", "gathered", "gathered in blocks", "summed", "summed in blocks", "experts"};
  constexpr const char* before[] = {"", ", gate", ", function"};
  constexpr const char* adapted[] = {"", ", low rank", ", scaled low rank"};
  return fmt::format("{}{}{}{}{}{}", rows[static_cast<int>(c.rows)], before[static_cast<int>(c.before)],
                     c.keeps ? "" : ", remade", adapted[static_cast<int>(c.adapted)],
                     c.epilogue ? ", epilogue" : "", c.defers ? ", deferred" : "");
}

std::shared_ptr<const ops::LinearRoute> route_of(const Combination& c, const ProcessGroup& world, bool fp8) {
  const bool blocks = c.rows == Rows::gathered_blocks || c.rows == Rows::summed_blocks;
  const TensorOverlap overlap{.on = true,
                              .gather = blocks,
                              .scatter = blocks,
                              .scatter_data = blocks,
                              .gather_under_data = !blocks,
                              .reduce_under_weight = !blocks,
                              .aggregate = blocks && c.keeps,
                              // Parts of these few rows would be too small for fp8.
                              .splits = blocks && c.defers && !fp8 ? 2 : 0};
  const TensorParallel tp{world, c.rows != Rows::whole, overlap};
  return c.rows == Rows::local || c.grouped() ? nullptr : c.sums() ? row_route(tp) : column_route(tp);
}

// The linear with weight, bias (where it has one), a, b and g (where it is adapted).
struct Linear {
  Combination c;
  ops::ActivationOptions gate, function;
  ops::Fp8Weight* fp8 = nullptr;
  std::vector<std::shared_ptr<LowRankAdapter>> adapters = {};  // live as long as the tape

  Tensor run(RankContext& ctx, const ProcessGroup& world, const Tensor& x, const std::vector<Weight>& w) {
    size_t next = 1;
    ops::LinearCall call{.fp8 = fp8, .route = route_of(c, world, fp8 != nullptr), .keep_active = c.keeps};
    if (c.biased()) call.bias = w[next++];
    // The second expert has no row, the others half of them each.
    const auto half = static_cast<int32_t>(x.size(0) / 2);
    if (c.grouped()) call.offsets = ctx.from_vector<int32_t>({0, half, half, 2 * half}, {kExperts + 1});
    if (c.adapted != Adapted::no) {
      const Weight& g = c.adapted == Adapted::scaled ? w[next + 2] : Weight{};
      adapters.push_back(std::make_shared<LowRankAdapter>(w[next], w[next + 1], g, 0.5));
      call.adapter = adapters.back().get();
    }
    if (c.before != Before::nothing) call.input_activation = c.before == Before::gate ? gate : function;
    if (c.epilogue) call.output_activation = function;
    const auto [y, active] = ops::call_linear(ctx, x, w[0], call);
    EXPECT_EQ(active.defined(), c.epilogue);
    return y;
  }
};

std::vector<Shape> weight_shapes(const Combination& c, int64_t in, int64_t out) {
  std::vector<Shape> shapes = {c.grouped() ? Shape{kExperts, out, in} : Shape{out, in}};
  if (c.biased()) shapes.push_back({out});
  if (c.adapted != Adapted::no) shapes.insert(shapes.end(), {{1, in}, {out, 1}});
  if (c.adapted == Adapted::scaled) shapes.push_back({out});
  return shapes;
}

TEST(LinearProduct, GradientsOfEveryCombination) {
  for_each_combination([](const Combination& c) {
    constexpr int64_t in = 2, out = 3;
    ranks_gradcheck(
        2,
        [&](RankContext& ctx, const ProcessGroup& world) {
          const auto seed = [&](uint64_t which) { return 10 * which + static_cast<uint64_t>(world.rank()); };
          RankOp op;
          op.same_inputs = c.rows == Rows::whole;
          op.inputs = {random_tensor(ctx, {2, c.inputs() * in}, op.same_inputs ? 1 : seed(1))};
          for (const Shape& shape : weight_shapes(c, in, out))
            op.weights.push_back(random_tensor(ctx, shape, seed(2 + op.weights.size())));
          auto linear = std::make_shared<Linear>(Linear{c,
                                                        {.kind = Unary::Silu, .limit = 0.7, .up_offset = 1},
                                                        {.kind = Unary::GeluTanh, .gated = false}});
          op.run = [&ctx, world, linear](const std::vector<Tensor>& x, const std::vector<Weight>& w) {
            return linear->run(ctx, world, x[0], w);
          };
          return op;
        },
        c.defers);
    ASSERT_FALSE(HasFailure()) << describe(c);
  });
}

// Whole numbers of at most 7, the first of each row 7: fp8 holds them exactly, under any recipe.
Tensor whole_numbers(RankContext& ctx, Shape shape, uint64_t seed, DType dtype, int64_t gates) {
  std::vector<double> values(static_cast<size_t>(shape.numel()));
  const auto columns = static_cast<size_t>(shape[-1]);
  for (size_t i = 0; i < values.size(); ++i) {
    const uint32_t word = Philox::at({seed, 1}, i).word[0];
    const size_t column = i % columns;
    if (column < static_cast<size_t>(gates))
      values[i] = column == 0 || word % 2 ? 1 : -1;
    else
      values[i] = column == static_cast<size_t>(gates) ? 7 : static_cast<double>(word % 15) - 7;
  }
  Tensor wide = ctx.from_vector(values, shape), result = ctx.empty(shape, dtype);
  ctx.kernels->copy(ctx.kernel_context(), {wide, result});
  return result;
}

// Result and all gradients of every rank.
std::vector<std::vector<double>> results(const Combination& c, DType dtype, const ops::Fp8Weight* recipe,
                                         bool exact) {
  constexpr int64_t in = 16, out = 32;
  const int64_t tokens = c.grouped() ? 256 : 32;  // an expert's rows are whole blocks
  std::vector<std::vector<double>> all(2);
  run_ranks(2, [&](int, const ProcessGroup& world) {
    RankContext ctx(kCpu, 1, world.rank());
    ops::Fp8Weight fp8;
    if (recipe)
      fp8.gradient = recipe->gradient, fp8.blocks = recipe->blocks, fp8.wide_wgrad = recipe->wide_wgrad;
    const auto make = [&](const Shape& shape, uint64_t which, int64_t gates = 0) {
      const uint64_t seed =
          10 * which + static_cast<uint64_t>(which == 1 && c.rows == Rows::whole ? 0 : world.rank());
      return exact ? whole_numbers(ctx, shape, seed, dtype, gates) : random_tensor(ctx, shape, seed, dtype);
    };
    std::vector<std::unique_ptr<TestWeight>> held;
    std::vector<Weight> weights;
    for (const Shape& shape : weight_shapes(c, in, out)) {
      Tensor value = make(shape, 2 + held.size());
      const bool scales = c.adapted == Adapted::scaled && held.size() + 1 == weight_shapes(c, in, out).size();
      if (scales) ctx.kernels->fill(ctx.kernel_context(), {value, 2});
      held.push_back(std::make_unique<TestWeight>(ctx, value));
      weights.push_back(held.back()->get());
    }
    Linear linear{c, {.kind = Unary::Relu}, {.kind = Unary::Relu, .gated = false}, recipe ? &fp8 : nullptr};
    Tape tape(ctx);
    Tensor x = tape.watch(make({tokens, c.inputs() * in}, 1, c.before == Before::gate ? in : 0));
    ctx.defer_weight_grads = c.defers;
    Tensor y;
    {
      TapeScope scope(ctx, &tape);
      y = linear.run(ctx, world, x, weights);
    }
    tape.backward(ctx, y, make(y.shape(), 9));
    tape.backward_weight(ctx);
    EXPECT_EQ(fp8.current, recipe != nullptr);
    const auto add = [&](const Tensor& t) {
      const std::vector<double> values = to_doubles(ctx, t);
      auto& mine = all[static_cast<size_t>(world.rank())];
      mine.insert(mine.end(), values.begin(), values.end());
    };
    add(y.detach());
    add(tape.grad(x));
    for (const auto& weight : held) add(weight->accumulator.main_grad);
  });
  return all;
}

// fp8 changes nothing where it rounds nothing, by each recipe, and something where it does.
TEST(LinearProduct, Fp8OfExactNumbersIsTheSameLinear) {
  const ops::Fp8Weight recipes[] = {
      {.matrix = {}}, {.blocks = true, .matrix = {}}, {.wide_wgrad = true, .matrix = {}}};
  for_each_combination([&](const Combination& c) {
    SCOPED_TRACE(describe(c));
    const auto plain = results(c, DType::F64, nullptr, true);
    for (const ops::Fp8Weight& recipe : recipes) EXPECT_EQ(results(c, DType::F64, &recipe, true), plain);
    if (c.adapted != Adapted::no || c.defers) return;
    EXPECT_NE(results(c, DType::F64, &recipes[0], false), results(c, DType::F64, nullptr, false));
  });
}

TEST(LinearProduct, WhatIsNotBuiltIsRefusedByName) {
  run_ranks(2, [](int, const ProcessGroup& world) {
    RankContext ctx(kCpu, 1, world.rank());
    const Tensor x = ctx.zeros({4, 2}, DType::F32);
    const Weight w{ctx.zeros({2, 2}, DType::F32)}, bias{ctx.zeros({2}, DType::F32)},
        experts{ctx.zeros({1, 2, 2}, DType::F32)};
    const Tensor offsets = ctx.from_vector<int32_t>({0, 4}, {2});
    const TensorParallel tp{world, true, {.on = true}};
    const LowRankAdapter adapter(w, w, {}, 1);
    const auto refused = [&](const Weight& weight, const ops::LinearCall& call, const std::string& message) {
      try {
        ops::call_linear(ctx, x, weight, call);
        ADD_FAILURE() << "taken: " << message;
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
      }
    };
    refused(experts, {.offsets = offsets, .route = column_route(tp)},
            "grouped_linear: a matrix per expert with rows of other ranks is not built");
    refused(experts, {.bias = bias, .offsets = offsets}, "with a bias is not built");
    refused(experts, {.offsets = offsets, .adapter = &adapter}, "with an adapter is not built");
    refused(w, {.bias = bias, .route = row_route(tp)},
            "row_parallel_linear: a sum over ranks with a bias is not built; add it behind the sum");
  });
}

}  // namespace
}  // namespace megatron::testing
