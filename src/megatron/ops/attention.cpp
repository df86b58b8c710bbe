#include "megatron/ops/attention.h"

#include <algorithm>
#include <cmath>

#include "megatron/ops/check.h"

namespace megatron::ops {
namespace {

// (query, key) pairs that one head computes. Packed lengths live on the device, so the longest stands for
// all.
double visible_pairs(const AttentionArgs& args) {
  int64_t queries = args.max_queries, keys = args.max_keys;
  double pairs = 0;
  for (int64_t query = 0; query < queries; ++query) {
    int64_t own = query + attention_shift(args.offsets, queries, keys);
    int64_t end = args.causal ? own + 1 : args.window_right >= 0 ? own + args.window_right + 1 : keys;
    int64_t begin = args.window_left >= 0 ? own - args.window_left : 0;
    pairs +=
        static_cast<double>(std::max<int64_t>(0, std::min(end, keys) - std::clamp<int64_t>(begin, 0, keys)));
  }
  return pairs * static_cast<double>(args.q.size(0)) / static_cast<double>(std::max<int64_t>(1, queries));
}

void trace_attention(RankContext& ctx, const AttentionArgs& args, Phase phase) {
  if (!ctx.tracer) return;
  double per_pair = phase == Phase::Forward ? 2.0 * static_cast<double>(args.q.size(2) + args.v.size(2))
                                            : 6.0 * static_cast<double>(args.q.size(2)) +
                                                  4.0 * static_cast<double>(args.v.size(2));
  double bytes = static_cast<double>(args.q.bytes() + args.k.bytes() + args.v.bytes() + args.o.bytes());
  trace_op(ctx.tracer, "attention", phase,
           {per_pair * visible_pairs(args) * static_cast<double>(args.q.size(1)),
            phase == Phase::Forward ? bytes : 2 * bytes},
           {&args.q, &args.k, &args.v});
}

// What the gradients of attention need, wherever q, k and v lie.
class AttentionBase : public Node {
 public:
  const char* name() const override { return "attention"; }

 protected:
  AttentionBase(RankContext& ctx, const AttentionArgs& args, const AttentionOptions& options)
      : args_(args),
        o_(ctx, args.o),
        bias_slot_(options.bias.grad_slot()),
        sinks_(options.sinks),
        sinks_begin_(options.sinks_begin) {
    args_.q = args_.k = args_.v = args_.o = {};  // held by Saved, which may pack them
    if (sinks_.accumulator) sinks_.accumulator->expect_use();
  }

  // Into `grads`, and the gradients of sinks and bias to where they belong.
  void differentiate(RankContext& ctx, Tape& tape, const QkvHeads& heads, const QkvHeads& grads) {
    AttentionBackwardArgs args{.forward = args_,
                               .grad_o = tape.take_grad(output()),
                               .dq = grads.q,
                               .dk = grads.k,
                               .dv = grads.v,
                               .accumulate = true,
                               .deterministic = ctx.deterministic};
    AttentionArgs& f = args.forward;
    f.q = heads.q, f.k = heads.k, f.v = heads.v, f.o = o_.get(ctx);
    args.dsinks = sinks_gradient(ctx, sinks_, sinks_begin_, f.q.size(1));
    if (bias_slot_) args.dbias = ctx.empty(f.bias.shape(), accumulation_dtype(f.bias.dtype()));
    ctx.kernels->attention_backward(ctx.kernel_context(), args);
    trace_attention(ctx, f, Phase::BackwardData);
    if (sinks_.accumulator) sinks_.accumulator->contribute(ctx);
    if (bias_slot_) {
      Tensor dbias = args.dbias;
      if (dbias.dtype() != f.bias.dtype()) {
        dbias = ctx.empty(f.bias.shape(), f.bias.dtype());
        ctx.kernels->copy(ctx.kernel_context(), {args.dbias, dbias});
      }
      tape.add_grad(ctx, bias_slot_, std::move(dbias));
    }
    args_ = {};
    o_.reset();
  }

 private:
  AttentionArgs args_;
  Saved o_;
  GradSlot bias_slot_;
  Weight sinks_;
  int64_t sinks_begin_;
};

class AttentionNode final : public AttentionBase {
 public:
  AttentionNode(RankContext& ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                const AttentionArgs& args, const AttentionOptions& options)
      : AttentionBase(ctx, args, options),
        q_(ctx, q),
        k_(ctx, k),
        v_(ctx, v),
        q_slot_(q.grad_slot()),
        k_slot_(k.grad_slot()),
        v_slot_(v.grad_slot()) {}

  void backward_data(RankContext& ctx, Tape& tape) override {
    QkvHeads heads{q_.get(ctx), k_.get(ctx), v_.get(ctx)};
    QkvHeads grads{ctx.empty_like(heads.q), ctx.empty_like(heads.k), ctx.empty_like(heads.v)};
    differentiate(ctx, tape, heads, grads);
    tape.add_grad(ctx, q_slot_, std::move(grads.q));
    tape.add_grad(ctx, k_slot_, std::move(grads.k));
    tape.add_grad(ctx, v_slot_, std::move(grads.v));
    for (Saved* saved : {&q_, &k_, &v_}) saved->reset();
  }

 private:
  Saved q_, k_, v_;
  GradSlot q_slot_, k_slot_, v_slot_;
};

class FusedAttentionNode final : public AttentionBase {
 public:
  FusedAttentionNode(RankContext& ctx, const Tensor& rotated, GradSlot slot, const QkvShape& shape,
                     const Rotation& rotation, const AttentionArgs& args, const AttentionOptions& options)
      : AttentionBase(ctx, args, options),
        qkv_(ctx, rotated),
        slot_(slot),
        shape_(shape),
        rotation_(rotation) {}

  void backward_data(RankContext& ctx, Tape& tape) override {
    Tensor qkv = qkv_.get(ctx), grad = ctx.empty_like(qkv);
    differentiate(ctx, tape, views_of(qkv, shape_), views_of(grad, shape_));
    turn_projection(ctx, grad, shape_, rotation_, true);
    tape.add_grad(ctx, slot_, std::move(grad));
    qkv_.reset();
    rotation_ = {};
  }

 private:
  Saved qkv_;  // queries and keys rotated
  GradSlot slot_;
  QkvShape shape_;
  Rotation rotation_;
};

void check_packed(const RankContext& ctx, const AttentionOptions& options, const Tensor& cu_keys) {
  for (const Tensor* cu : {&options.cu_queries, &cu_keys}) {
    check_input(ctx, "attention", "cu_seqlens", *cu);
    check_dtype("attention", "cu_seqlens", *cu, DType::I32);
    require(cu->rank() == 1 && cu->size(0) >= 2 && cu->size(0) == cu_keys.size(0) && cu->is_contiguous(),
            "attention: cu_seqlens is {}, but it must be [sequences + 1], for keys as for queries", *cu);
  }
  require(options.max_queries > 0, "attention: packed sequences need max_queries, the length of the longest");
  require(!options.bias, "attention: a bias {} does not fit packed sequences of different lengths",
          options.bias);
}

void check_blocks(const RankContext& ctx, const AttentionOptions& options, int64_t rows) {
  for (const Tensor* x : {&options.blocks, &options.key_lengths}) {
    check_input(ctx, "attention", "blocks", *x);
    check_dtype("attention", "blocks", *x, DType::I32);
  }
  const int64_t sequences = options.cu_queries ? options.cu_queries.size(0) - 1 : 0;
  require(options.blocks.rank() == 2 && options.blocks.size(0) == sequences &&
              options.key_lengths.shape() == Shape{sequences} && options.key_lengths.is_contiguous(),
          "attention: blocks {} and key lengths {} do not fit {} packed sequences", options.blocks,
          options.key_lengths, sequences);
  require(options.block_size > 0 && rows % options.block_size == 0,
          "attention: a pool of {} rows is not made of blocks of {}", rows, options.block_size);
  require(options.dropout == 0 && options.window_right < 0,
          "attention: keys in blocks are for decoding, without dropout or keys behind the query");
}

AttentionArgs make_args(RankContext& ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                        const AttentionOptions& options) {
  for (auto [name, x] : {std::pair{"q", &q}, {"k", &k}, {"v", &v}}) {
    check_input(ctx, "attention", name, *x);
    const bool small = options.blocks && x != &q && x->dtype() == DType::F8E4M3;  // kernels/fp8_pages.h
    if (!small) check_dtype("attention", name, *x, q.dtype());
    require(x->rank() == 3 && x->stride(2) == 1,
            "attention: {} is {}, but it must be [tokens, heads, head_dim] with unit stride in head_dim",
            name, *x);
  }
  check_dtype("attention", "v", v, k.dtype());
  require(q.size(2) == k.size(2) && k.size(0) == v.size(0) && k.size(1) == v.size(1),
          "attention: q {}, k {} and v {} do not fit: q and k share head_dim, k and v tokens and heads", q, k,
          v);
  require(k.size(1) > 0 && q.size(1) % k.size(1) == 0,
          "attention: {} query heads cannot share {} key/value heads evenly", q.size(1), k.size(1));
  require(options.dropout >= 0 && options.dropout < 1, "attention: dropout {} is not in [0, 1)",
          options.dropout);
  AttentionArgs args{
      .q = q.detach(),
      .k = k.detach(),
      .v = v.detach(),
      .scale = options.scale > 0 ? options.scale : 1 / std::sqrt(static_cast<double>(q.size(2))),
      .causal = options.causal,
      .window_left = options.window_left,
      .window_right = options.window_right,
      .softcap = options.softcap,
      .dropout = options.dropout,
      .dropout_key = options.dropout_key,
      .offsets = options.offsets};
  if (args.offsets.global_heads == 0) args.offsets.global_heads = q.size(1);
  if (options.blocks) {
    check_blocks(ctx, options, k.size(0));
    check_packed(ctx, options, options.cu_queries);
    args.cu_queries = options.cu_queries;
    args.blocks = options.blocks;
    args.key_lengths = options.key_lengths;
    args.block_size = options.block_size;
    args.batch = args.cu_queries.size(0) - 1;
    args.max_queries = options.max_queries;
    args.max_keys = options.max_keys;
  } else if (options.cu_queries) {
    args.cu_queries = options.cu_queries;
    args.cu_keys = options.cu_keys ? options.cu_keys : options.cu_queries;
    check_packed(ctx, options, args.cu_keys);
    args.batch = args.cu_queries.size(0) - 1;
    args.max_queries = options.max_queries;
    args.max_keys = options.max_keys ? options.max_keys : options.max_queries;
  } else {
    require(options.batch > 0 && q.size(0) % options.batch == 0 && k.size(0) % options.batch == 0,
            "attention: {} query and {} key tokens are not {} sequences of equal length", q.size(0),
            k.size(0), options.batch);
    args.batch = options.batch;
    args.max_queries = q.size(0) / options.batch;
    args.max_keys = k.size(0) / options.batch;
  }
  // The counter of a (query, key) pair has 20 bits for each.
  int64_t longest = std::max({args.max_queries * std::max<int64_t>(1, args.offsets.query_chunk + 1),
                              args.max_keys * (args.offsets.key_chunk + 1), args.offsets.row_length});
  require(options.dropout == 0 || longest <= int64_t{1} << 20,
          "attention: dropout knows places up to 2^20, but a sequence of {} tokens was given (q {}, k {}); "
          "train without attention dropout, or on shorter sequences",
          longest, q, k);
  if (options.sinks.defined()) {
    args.sinks = options.sinks.value;
    check_input(ctx, "attention", "sinks", args.sinks);
    require(args.sinks.rank() == 1 && options.sinks_begin + q.size(1) <= args.sinks.size(0),
            "attention: sinks is {}, but {} heads from {} on need one each", args.sinks, q.size(1),
            options.sinks_begin);
    args.sinks = args.sinks.slice(0, options.sinks_begin, options.sinks_begin + q.size(1));
    check_dtype("attention", "sinks", args.sinks, q.dtype());
  }
  if (options.max_scores) {
    check_dtype("attention", "max_scores", options.max_scores, accumulation_dtype(q.dtype()));
    require(options.max_scores_begin + q.size(1) <= options.max_scores.size(0) && !options.sinks.defined() &&
                !options.blocks,
            "attention: max_scores is {}, but {} heads from {} on need one each, without sinks or blocks",
            options.max_scores, q.size(1), options.max_scores_begin);
    args.max_scores =
        options.max_scores.slice(0, options.max_scores_begin, options.max_scores_begin + q.size(1));
  }
  if (options.bias) {
    args.bias = options.bias.detach();
    const Tensor& bias = args.bias;
    check_input(ctx, "attention", "bias", bias);
    check_dtype("attention", "bias", bias, q.dtype());
    require(bias.rank() == 4 && (bias.size(0) == 1 || bias.size(0) == args.batch) &&
                (bias.size(1) == 1 || bias.size(1) == q.size(1)) && bias.size(2) == args.max_queries &&
                bias.size(3) == args.max_keys,
            "attention: bias is {}, but it must be [1 or {}, 1 or {}, {}, {}]", bias, args.batch, q.size(1),
            args.max_queries, args.max_keys);
  }
  return args;
}

// The forward pass.
AttentionArgs attend(RankContext& ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                     const AttentionOptions& options) {
  AttentionArgs args = make_args(ctx, q, k, v, options);
  args.o = ctx.empty({q.size(0), q.size(1), v.size(2)}, q.dtype());
  args.lse = ctx.empty({q.size(1), q.size(0)}, accumulation_dtype(q.dtype()));
  ctx.kernels->attention(ctx.kernel_context(), args);
  trace_attention(ctx, args, Phase::Forward);
  return args;
}

}  // namespace

AttentionResult attention(RankContext& ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                          const AttentionOptions& options) {
  AttentionArgs args = attend(ctx, q, k, v, options);
  AttentionResult result{args.o, args.lse};
  const bool recorded = needs_grad(ctx, {&q, &k, &v, &options.bias}, {&options.sinks});
  require(!recorded || !options.blocks, "attention: keys in blocks have no gradient; use NoGrad");
  if (recorded) record(ctx, std::make_unique<AttentionNode>(ctx, q, k, v, args, options), result.o);
  return result;
}

AttentionResult fused_attention(RankContext& ctx, Tensor qkv, const QkvShape& shape, const Rotation& rotation,
                                const AttentionOptions& options) {
  check_projection(ctx, "fused_attention", qkv, shape, rotation);
  require(shape.even(),
          "fused_attention: {} query heads that share {} KV heads do not lie evenly; use split_qkv",
          shape.heads, shape.groups);
  const bool recorded = needs_grad(ctx, {&qkv, &options.bias}, {&options.sinks});
  const GradSlot slot = qkv.grad_slot();
  qkv = qkv.detach();
  turn_projection(ctx, qkv, shape, rotation);
  auto [q, k, v] = views_of(qkv, shape);
  AttentionArgs args = attend(ctx, q, k, v, options);
  AttentionResult result{args.o, args.lse};
  if (recorded)
    record(ctx, std::make_unique<FusedAttentionNode>(ctx, qkv, slot, shape, rotation, args, options),
           result.o);
  return result;
}

Tensor sinks_gradient(RankContext& ctx, const Weight& sinks, int64_t begin, int64_t heads) {
  if (!sinks.accumulator) return {};
  GradAccumulator& accumulator = *sinks.accumulator;
  const Tensor& sum = accumulator.target(ctx);
  if (!accumulator.has_value()) ctx.kernels->fill(ctx.kernel_context(), {sum, 0});
  return sum.slice(0, begin, begin + heads);
}

AttentionGrads attention_backward(RankContext& ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                                  const AttentionResult& result, const Tensor& grad_o,
                                  const AttentionOptions& options, const Tensor& dsinks) {
  AttentionBackwardArgs args{
      .forward = make_args(ctx, q, k, v, options), .grad_o = grad_o, .deterministic = ctx.deterministic};
  args.forward.o = result.o, args.forward.lse = result.lse;
  args.dq = ctx.empty(q.shape(), q.dtype());
  args.dk = ctx.empty(k.shape(), k.dtype());
  args.dv = ctx.empty(v.shape(), v.dtype());
  args.dsinks = dsinks;
  args.accumulate = true;
  ctx.kernels->attention_backward(ctx.kernel_context(), args);
  trace_attention(ctx, args.forward, Phase::BackwardData);
  return {args.dq, args.dk, args.dv};
}

}  // namespace megatron::ops
