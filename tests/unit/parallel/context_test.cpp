#include <gtest/gtest.h>

#include <mutex>

#include "megatron/ops/attention.h"
#include "megatron/parallel/context/attention.h"
#include "megatron/parallel/context/sequences.h"
#include "support/ranks_gradcheck.h"

namespace megatron::testing {
namespace {

TEST(ZigzagTokens, EachRankHoldsAnEarlyAndALateChunk) {
  std::vector<int64_t> lengths = {8, 4};
  EXPECT_EQ(zigzag_tokens(lengths, 0, 2), (std::vector<int64_t>{0, 1, 6, 7, 8, 11}));
  EXPECT_EQ(zigzag_tokens(lengths, 1, 2), (std::vector<int64_t>{2, 3, 4, 5, 9, 10}));
  EXPECT_EQ(zigzag_tokens(lengths, 0, 1).size(), 12u);
  EXPECT_THROW(zigzag_tokens(std::vector<int64_t>{6}, 0, 2), Error);
}

TEST(HeldSequences, PositionsAndPlacesGoByTheWholeSequence) {
  RankContext ctx;
  run_ranks(2, [&](int, const ProcessGroup& world) {
    RankContext rank(kCpu, 1, world.rank());
    SeqInfo seq = held_sequences(rank, {.rows = 2, .length = 12, .documents = {4, 8, 12}}, {.group = world});
    EXPECT_EQ(seq.row_length, 12);
    std::vector<int64_t> positions = rank.to_vector<int64_t>(seq.positions);
    std::vector<int64_t> expected = world.rank() == 0
                                        ? std::vector<int64_t>{0, 3, 0, 1, 6, 7, 0, 1, 2, 9, 10, 11}
                                        : std::vector<int64_t>{1, 2, 2, 3, 4, 5, 3, 4, 5, 6, 7, 8};
    EXPECT_EQ(positions, expected);
    EXPECT_EQ(rank.to_vector<int32_t>(seq.cu_seqlens), (std::vector<int32_t>{0, 2, 6, 12}));
  });
  EXPECT_THROW(held_sequences(ctx, {.rows = 1, .length = 12, .documents = {4, 4}}, {}), Error);
}

struct Case {
  const char* name;
  TokenRows rows = {.rows = 2, .length = 16, .documents = {}};
  int64_t heads = 4, kv_heads = 4, d = 3, dv = 3;
  bool causal = true, sinks = false;
  int64_t window_left = -1, window_right = -1;
  double softcap = 0, dropout = 0;
};

std::vector<Case> cases() {
  return {
      {.name = "plain"},
      {.name = "one_row", .rows = {.rows = 1, .length = 16, .documents = {}}},
      {.name = "grouped", .heads = 8, .d = 4, .dv = 2},
      {.name = "all_keys", .causal = false},
      {.name = "window", .window_left = 5},
      {.name = "window_both_ways", .causal = false, .window_left = 3, .window_right = 6},
      {.name = "softcap_sinks", .sinks = true, .softcap = 2},
      {.name = "dropout", .dropout = 0.3},
      {.name = "packed", .rows = {.rows = 2, .length = 32, .documents = {8, 24, 16, 16}}},
      {.name = "packed_all",
       .rows = {.rows = 2, .length = 32, .documents = {8, 24, 16, 16}},
       .heads = 8,
       .dv = 5,
       .sinks = true,
       .window_left = 6,
       .softcap = 2,
       .dropout = 0.2},
  };
}

struct Inputs {
  Inputs(RankContext& ctx, const Case& c) {
    int64_t tokens = c.rows.rows * c.rows.length;
    q = random_tensor(ctx, {tokens, c.heads, c.d}, 1);
    k = random_tensor(ctx, {tokens, c.kv_heads, c.d}, 2);
    v = random_tensor(ctx, {tokens, c.kv_heads, c.dv}, 3);
    direction = random_tensor(ctx, {tokens, c.heads, c.dv}, 4);
    if (c.sinks) sinks = random_tensor(ctx, {c.heads}, 5);
  }
  Tensor q, k, v, direction, sinks;
};

ops::AttentionOptions options_of(const Case& c) {
  ops::AttentionOptions options;
  options.causal = c.causal;
  options.window_left = c.window_left;
  options.window_right = c.window_right;
  options.softcap = c.softcap;
  options.dropout = c.dropout;
  options.dropout_key = {11, 12};
  options.offsets.batch_begin = 3;
  if (!c.rows.documents.empty()) options.offsets.row_length = c.rows.length;
  return options;
}

// o and the gradients of q, k, v [tokens, …] and of the sinks.
struct Results {
  std::vector<double> o, dq, dk, dv, dsinks;
};

Results on_one_rank(const Case& c) {
  RankContext ctx;
  Inputs in(ctx, c);
  SeqInfo seq = held_sequences(ctx, c.rows, {});
  ops::AttentionOptions options = options_of(c);
  options.batch = seq.batch;
  options.cu_queries = seq.cu_seqlens;
  options.max_queries = seq.max_length;
  TestWeight sinks(ctx, c.sinks ? in.sinks : ctx.zeros({1}, DType::F64));
  if (c.sinks) options.sinks = sinks.get();
  Tape tape(ctx);
  TapeScope scope(ctx, &tape);
  Tensor q = tape.watch(in.q), k = tape.watch(in.k), v = tape.watch(in.v);
  Tensor o = ops::attention(ctx, q, k, v, options).o;
  tape.backward(ctx, o, in.direction);
  auto values = [&](const Tensor& x) { return ctx.to_vector<double>(x); };
  return {values(o), values(tape.grad(q)), values(tape.grad(k)), values(tape.grad(v)),
          values(sinks.accumulator.main_grad)};
}

ContextParallel context_of(const ProcessGroup& world, ContextKind kind) {
  ContextParallel context{.group = world};
  if (kind == ContextKind::a2a_p2p) {
    int inner = world.size() > 2 ? 2 : 1;
    context.inner = world.split(world.rank() / inner, world.rank(), "inner");
    context.outer = world.split(world.rank() % inner, world.rank(), "outer");
  }
  return context;
}

// Rows of x that a rank holds.
Tensor rows_of(RankContext& ctx, const Tensor& x, const std::vector<int64_t>& held) {
  auto n = static_cast<int64_t>(held.size());
  Tensor part = ctx.empty({n, x.size(1), x.size(2)}, x.dtype());
  ctx.kernels->gather_rows(ctx.kernel_context(), {.table = x.view({x.size(0), x.size(1) * x.size(2)}),
                                                  .ids = ctx.from_vector(held, {n}),
                                                  .out = part.view({n, x.size(1) * x.size(2)})});
  return part;
}

void put_rows(std::vector<double>& whole, size_t tokens, const std::vector<int64_t>& held,
              const std::vector<double>& part) {
  size_t columns = part.size() / held.size();
  whole.resize(tokens * columns);
  for (size_t i = 0; i < held.size(); ++i)
    std::copy_n(part.begin() + static_cast<std::ptrdiff_t>(i * columns), columns,
                whole.begin() + held[i] * static_cast<std::ptrdiff_t>(columns));
}

Results on_ranks(const Case& c, int ranks, ContextKind kind) {
  Results all;
  std::mutex mutex;
  run_ranks(ranks, [&](int, const ProcessGroup& world) {
    RankContext ctx(kCpu, 1, world.rank());
    Inputs in(ctx, c);
    ContextParallel context = context_of(world, kind);
    std::vector<int64_t> held = held_tokens(c.rows, context);
    SeqInfo seq = held_sequences(ctx, c.rows, context);
    ops::AttentionOptions options = options_of(c);
    TestWeight sinks(ctx, c.sinks ? in.sinks : ctx.zeros({1}, DType::F64));
    if (c.sinks) options.sinks = sinks.get();
    Tape tape(ctx);
    TapeScope scope(ctx, &tape);
    Tensor q = tape.watch(rows_of(ctx, in.q, held)), k = tape.watch(rows_of(ctx, in.k, held)),
           v = tape.watch(rows_of(ctx, in.v, held));
    Tensor o = context_attention(ctx, q, k, v, options, seq.context, context, kind);
    tape.backward(ctx, o, rows_of(ctx, in.direction, held));
    world.all_reduce(sinks.accumulator.main_grad).wait();
    auto tokens = static_cast<size_t>(in.q.size(0));
    std::lock_guard lock(mutex);
    put_rows(all.o, tokens, held, ctx.to_vector<double>(o));
    put_rows(all.dq, tokens, held, ctx.to_vector<double>(tape.grad(q)));
    put_rows(all.dk, tokens, held, ctx.to_vector<double>(tape.grad(k)));
    put_rows(all.dv, tokens, held, ctx.to_vector<double>(tape.grad(v)));
    all.dsinks = ctx.to_vector<double>(sinks.accumulator.main_grad);
  });
  return all;
}

void expect_near(const std::vector<double>& a, const std::vector<double>& b, const char* what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-12) << what << " element " << i;
}

class ContextAttention : public ::testing::TestWithParam<std::pair<ContextKind, int>> {};

TEST_P(ContextAttention, EqualsOneRank) {
  auto [kind, ranks] = GetParam();
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    Results one = on_one_rank(c), many = on_ranks(c, ranks, kind);
    expect_near(one.o, many.o, "o");
    expect_near(one.dq, many.dq, "dq");
    expect_near(one.dk, many.dk, "dk");
    expect_near(one.dv, many.dv, "dv");
    expect_near(one.dsinks, many.dsinks, "dsinks");
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, ContextAttention,
                         ::testing::Values(std::pair{ContextKind::p2p, 2}, std::pair{ContextKind::p2p, 4},
                                           std::pair{ContextKind::all_gather, 2},
                                           std::pair{ContextKind::all_gather, 4},
                                           std::pair{ContextKind::a2a, 2}, std::pair{ContextKind::a2a, 4},
                                           std::pair{ContextKind::a2a_p2p, 2},
                                           std::pair{ContextKind::a2a_p2p, 4}));

void check_ring_gradients(int ranks) {
  Case c{.name = "gradcheck",
         .rows = {.rows = 1, .length = 8, .documents = {}},
         .heads = 2,
         .kv_heads = 1,
         .d = 2,
         .dv = 3,
         .window_left = 6,
         .softcap = 2,
         .dropout = 0.25};
  ranks_gradcheck(ranks, [&](RankContext& ctx, const ProcessGroup& world) {
    Inputs in(ctx, c);
    ContextParallel context{.group = world};
    std::vector<int64_t> held = held_tokens(c.rows, context);
    RankOp op;
    op.inputs = {rows_of(ctx, in.q, held), rows_of(ctx, in.k, held), rows_of(ctx, in.v, held)};
    op.run = [&ctx, world, options = options_of(c), seq = held_sequences(ctx, c.rows, context)](
                 const std::vector<Tensor>& x, const std::vector<Weight>&) {
      return ring_attention(ctx, x[0], x[1], x[2], options, seq.context.slice, world);
    };
    return op;
  });
}

TEST(RingAttention, GradientsOfTwoRanks) { check_ring_gradients(2); }
TEST(RingAttention, GradientsOfFourRanks) { check_ring_gradients(4); }

TEST(ContextParallel, RefusesWhatCannotBeSplit) {
  RankContext ctx;
  EXPECT_THROW(context_kind("ring"), Error);
  run_ranks(2, [&](int, const ProcessGroup& world) {
    RankContext rank(kCpu, 1, world.rank());
    EXPECT_THROW(tokens_for_heads(rank, rank.zeros({4, 3, 2}, DType::F64), world, {}), Error);
  });
}

}  // namespace
}  // namespace megatron::testing
