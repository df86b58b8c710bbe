#include "megatron/ops/cross_entropy.h"

#include <algorithm>
#include <bit>

#include "megatron/kernels/gemm_fused.h"
#include "megatron/ops/check.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/reduce.h"

namespace megatron::ops {
namespace {

// Options with what follows from the number of local columns.
struct Columns {
  CrossEntropyOptions options;
  int64_t valid = 0, vocab_size = 0;

  Columns(const char* op, const CrossEntropyOptions& o, int64_t columns) : options(o) {
    require(!o.reduce || o.vocab_size > 0,
            "{}: with the vocabulary spread over ranks, vocab_size must say how large it is", op);
    vocab_size = o.vocab_size > 0 ? o.vocab_size : columns;
    valid = std::clamp<int64_t>(vocab_size - o.vocab_begin, 0, columns);
    require(
        o.reduce || valid == vocab_size,
        "{}: {} columns from {} on do not hold a vocabulary of {}; give `reduce` where other ranks hold the "
        "rest",
        op, columns, o.vocab_begin, vocab_size);
  }
};

CrossEntropyStats make_stats(RankContext& ctx, int64_t rows, DType dtype,
                             const CrossEntropyOptions& options) {
  CrossEntropyStats stats{ctx.empty({rows}, dtype), ctx.empty({rows}, dtype), ctx.empty({rows}, dtype), {}};
  if (options.smoothing > 0) stats.sum_logits = ctx.empty({rows}, dtype);
  return stats;
}

CrossEntropyStats rows_of(const CrossEntropyStats& stats, int64_t begin, int64_t end) {
  auto part = [&](const Tensor& t) { return t ? t.slice(0, begin, end) : t; };
  return {part(stats.maximum), part(stats.sum_exp), part(stats.target), part(stats.sum_logits)};
}

CrossEntropyStatsArgs stats_args(const Tensor& logits, const Tensor& labels, const Columns& columns,
                                 const CrossEntropyStats& stats) {
  return {.logits = logits,
          .labels = labels,
          .vocab_begin = columns.options.vocab_begin,
          .valid = columns.valid,
          .maximum = stats.maximum,
          .sum_exp = stats.sum_exp,
          .target = stats.target,
          .sum_logits = stats.sum_logits};
}

void compute_stats(RankContext& ctx, const Tensor& logits, const Tensor& labels, const Columns& columns,
                   const CrossEntropyStats& stats) {
  ctx.kernels->cross_entropy_stats(ctx.kernel_context(), stats_args(logits, labels, columns, stats));
}

struct LossAndLse {
  Tensor loss, lse;
};

void compute_loss(RankContext& ctx, CrossEntropyStats& stats, const Tensor& labels, const Columns& columns,
                  const LossAndLse& result) {
  const CrossEntropyOptions& options = columns.options;
  if (options.reduce) options.reduce(ctx, stats);
  ctx.kernels->cross_entropy_loss(ctx.kernel_context(), {.maximum = stats.maximum,
                                                         .sum_exp = stats.sum_exp,
                                                         .target = stats.target,
                                                         .sum_logits = stats.sum_logits,
                                                         .labels = labels,
                                                         .ignore_index = options.ignore_index,
                                                         .vocab_size = columns.vocab_size,
                                                         .smoothing = options.smoothing,
                                                         .z_loss = options.z_loss,
                                                         .lse = result.lse,
                                                         .loss = result.loss});
}

LossAndLse compute_loss(RankContext& ctx, CrossEntropyStats& stats, const Tensor& labels,
                        const Columns& columns) {
  LossAndLse result{ctx.empty_like(stats.maximum), ctx.empty_like(stats.maximum)};
  compute_loss(ctx, stats, labels, columns, result);
  return result;
}

void compute_grad(RankContext& ctx, const Tensor& logits, const Tensor& labels, const Tensor& lse,
                  const Tensor& scale, const Columns& columns, const Tensor& dlogits) {
  const CrossEntropyOptions& options = columns.options;
  ctx.kernels->cross_entropy_grad(ctx.kernel_context(), {.logits = logits,
                                                         .labels = labels,
                                                         .lse = lse,
                                                         .scale = scale,
                                                         .vocab_begin = options.vocab_begin,
                                                         .valid = columns.valid,
                                                         .ignore_index = options.ignore_index,
                                                         .vocab_size = columns.vocab_size,
                                                         .smoothing = options.smoothing,
                                                         .z_loss = options.z_loss,
                                                         .dlogits = dlogits});
}

class CrossEntropyNode final : public Node {
 public:
  CrossEntropyNode(RankContext& ctx, const Tensor& logits, const Tensor& labels, const Tensor& lse,
                   const Columns& columns)
      : logits_(ctx, logits), labels_(labels), lse_(lse), slot_(logits.grad_slot()), columns_(columns) {}
  const char* name() const override { return "cross_entropy"; }

  void backward_data(RankContext& ctx, Tape& tape) override {
    Tensor logits = logits_.get(ctx);
    logits_.reset();
    // Where nobody else holds the logits, their gradient takes their place: there is no larger tensor in the
    // model.
    Tensor dlogits = logits.storage().unique() ? logits : ctx.empty_like(logits);
    compute_grad(ctx, logits, labels_, lse_, tape.take_grad(output()), columns_, dlogits);
    ctx.trace("cross_entropy", Phase::BackwardData, 4.0 * static_cast<double>(logits.numel()),
              2.0 * static_cast<double>(logits.bytes()));
    labels_ = lse_ = {};
    tape.add_grad(ctx, slot_, std::move(dlogits));
  }

 private:
  Saved logits_;
  Tensor labels_, lse_;
  GradSlot slot_;
  Columns columns_;
};

// Calls f(begin, end) for each chunk of rows.
template <class F>
void for_each_chunk(int64_t rows, int64_t chunk, F&& f) {
  for (int64_t begin = 0; begin < rows; begin += chunk) f(begin, std::min(rows, begin + chunk));
}

class LinearCrossEntropyNode final : public Node {
 public:
  LinearCrossEntropyNode(RankContext& ctx, const Tensor& hidden, const Weight& weight, const Tensor& labels,
                         const Tensor& lse, const Columns& columns, double logit_scale, int64_t chunk)
      : hidden_(ctx, hidden),
        weight_(weight),
        labels_(labels),
        lse_(lse),
        slot_(hidden.grad_slot()),
        columns_(columns),
        logit_scale_(logit_scale),
        chunk_(chunk) {
    if (weight_.accumulator) weight_.accumulator->expect_use();
  }
  const char* name() const override { return "linear_cross_entropy"; }

  void backward_data(RankContext& ctx, Tape& tape) override {
    Tensor scale = tape.take_grad(output()), hidden = hidden_.get(ctx);
    const Tensor& w = weight_.value;
    int64_t rows = hidden.size(0), columns = w.size(0);
    Tensor dhidden;
    if (slot_) dhidden = ctx.empty_like(hidden);
    DType wide = accumulation_dtype(hidden.dtype());
    Tensor logits = ctx.empty({std::min(rows, chunk_), columns}, wide, MemoryTag::Workspace);
    Tensor narrow = logits;
    if (wide != hidden.dtype()) narrow = ctx.empty(logits.shape(), hidden.dtype(), MemoryTag::Workspace);
    double beta = weight_.accumulator ? weight_.accumulator->beta() : 0;
    for_each_chunk(rows, chunk_, [&](int64_t begin, int64_t end) {
      Tensor x = hidden.slice(0, begin, end), y = logits.slice(0, 0, end - begin);
      Tensor dy = narrow.slice(0, 0, end - begin);
      ctx.kernels->gemm(ctx.kernel_context(),
                        {.a = x, .b = w.transpose(0, 1), .c = y, .alpha = logit_scale_});
      compute_grad(ctx, y, labels_.slice(0, begin, end), lse_.slice(0, begin, end),
                   scale.slice(0, begin, end), columns_, dy);
      if (dhidden)
        ctx.kernels->gemm(ctx.kernel_context(),
                          {.a = dy, .b = w, .c = dhidden.slice(0, begin, end), .alpha = logit_scale_});
      if (weight_.accumulator)
        ctx.kernels->gemm(ctx.kernel_context(), {.a = dy.transpose(0, 1),
                                                 .b = x,
                                                 .c = weight_.accumulator->target(ctx),
                                                 .alpha = logit_scale_,
                                                 .beta = beta});
      beta = 1;
    });
    double gemms = 1 + (slot_ ? 1 : 0) + (weight_.accumulator ? 1 : 0);
    ctx.trace("linear_cross_entropy", Phase::BackwardData,
              2.0 * gemms * static_cast<double>(hidden.numel()) * static_cast<double>(columns),
              gemms * static_cast<double>(hidden.bytes() + w.bytes()));
    hidden_.reset();
    labels_ = lse_ = {};
    if (weight_.accumulator) weight_.accumulator->contribute(ctx);
    tape.add_grad(ctx, slot_, std::move(dhidden));
  }

 private:
  Saved hidden_;
  Weight weight_;
  Tensor labels_, lse_;
  GradSlot slot_;
  Columns columns_;
  double logit_scale_;
  int64_t chunk_;
};

// The gradients were made in the forward pass.
class EarlyGradientsNode final : public Node {
 public:
  EarlyGradientsNode(const Tensor& hidden, const Weight& weight, Tensor dhidden)
      : dhidden_(std::move(dhidden)), slot_(hidden.grad_slot()), weight_(weight) {
    if (weight_.accumulator) weight_.accumulator->expect_use();
  }
  const char* name() const override { return "linear_cross_entropy_sum"; }

  void backward_data(RankContext& ctx, Tape& tape) override {
    require(
        tape.starts_at(output()),
        "linear_cross_entropy_sum: its gradients are made in the forward pass for a loss that backward "
        "starts from; put what the losses are multiplied with into `weights`, or use linear_cross_entropy");
    if (weight_.accumulator) weight_.accumulator->contribute(ctx);
    tape.add_grad(ctx, slot_, std::move(dhidden_));
  }

 private:
  Tensor dhidden_;
  GradSlot slot_;
  Weight weight_;
};

// Equal chunks of rows, a power of two where there are many, of about a GiB of logits: the GEMM that makes
// the gradient of so few rows then fills the SMs with whole tiles.
int64_t chunk_rows_for(int64_t rows, int64_t columns, DType dtype) {
  constexpr int64_t kMaxBytes = int64_t{5} << 28;
  auto row_bytes = std::max<int64_t>(1, columns * static_cast<int64_t>(size_of(dtype)));
  auto most = static_cast<int64_t>(
      std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(256, kMaxBytes / row_bytes))));
  int64_t chunks = std::max<int64_t>(1, (rows + most - 1) / most);
  return std::max<int64_t>(1, ((rows + chunks - 1) / chunks + 127) / 128 * 128);
}

// What the losses of a chunk take besides its logits, where statistics, loss and gradient are kernels of
// their own: other ranks have to be asked in between, or the GEMM leaves the statistics. Whether it does
// is the device's affair, but each allocates the same, so that a plan made on the meta device holds.
struct ChunkMemory {
  CrossEntropyStats stats;
  Tensor lse, tiles;

  ChunkMemory(RankContext& ctx, int64_t rows, const Tensor& weight, const CrossEntropyOptions& options) {
    const bool fused_stats = weight.dtype() == DType::BF16 && options.smoothing <= 0;
    if (!fused_stats && !options.reduce) return;
    const DType dtype = accumulation_dtype(weight.dtype());
    stats = make_stats(ctx, rows, dtype, options);
    lse = ctx.empty({rows}, dtype);
    if (fused_stats)
      tiles = ctx.empty({gemm_softmax_stats_tiles(rows, weight.size(0))}, DType::F32, MemoryTag::Workspace);
  }
};

// logits = x · wᵀ. Returns whether their statistics are known, too.
bool compute_logits(RankContext& ctx, const Tensor& x, const Tensor& w, const Tensor& labels,
                    const Columns& columns, const ChunkMemory& memory, const Tensor& logits) {
  const CrossEntropyStats stats = rows_of(memory.stats, 0, x.size(0));
  bool known = memory.tiles &&
               ctx.kernels->gemm_softmax_stats(
                   ctx.kernel_context(), {x, w, stats_args(logits, labels, columns, stats), memory.tiles});
  if (!known) ctx.kernels->gemm(ctx.kernel_context(), {.a = x, .b = w.transpose(0, 1), .c = logits});
  trace(ctx, "head", Phase::Forward, 2.0 * static_cast<double>(x.numel() * w.size(0)), {&x, &w, &logits});
  return known;
}

// Losses of one chunk of logits, which become their own gradient times `scale` [rows] where that is wanted.
void losses_and_gradient(RankContext& ctx, const Tensor& logits, const Tensor& labels, const Columns& columns,
                         const ChunkMemory& memory, bool known, const Tensor& scale, bool gradient,
                         const Tensor& loss) {
  const CrossEntropyOptions& options = columns.options;
  if (known || options.reduce) {
    const int64_t rows = logits.size(0);
    CrossEntropyStats stats = rows_of(memory.stats, 0, rows);
    const Tensor lse = memory.lse.slice(0, 0, rows);
    if (!known) compute_stats(ctx, logits, labels, columns, stats);
    compute_loss(ctx, stats, labels, columns, {loss, lse});
    if (gradient) compute_grad(ctx, logits, labels, lse, scale, columns, logits);
    return;
  }
  ctx.kernels->cross_entropy(ctx.kernel_context(), {.logits = logits,
                                                    .labels = labels,
                                                    .scale = scale,
                                                    .valid = columns.valid,
                                                    .ignore_index = options.ignore_index,
                                                    .vocab_size = columns.vocab_size,
                                                    .smoothing = options.smoothing,
                                                    .z_loss = options.z_loss,
                                                    .loss = loss,
                                                    .dlogits = gradient ? logits : Tensor{}});
}

void check_head(const RankContext& ctx, const char* op, const Tensor& hidden, const Tensor& weight) {
  check_input(ctx, op, "hidden", hidden);
  check_input(ctx, op, "weight", weight);
  require(hidden.rank() == 2 && weight.rank() == 2 && hidden.size(1) == weight.size(1),
          "{}: hidden {} and weight {} do not fit; they must be [rows, hidden] and [columns, hidden]", op,
          hidden, weight);
  check_dtype(op, "weight", weight, hidden.dtype());
}

void check_labels(const RankContext& ctx, const char* op, const Tensor& labels, int64_t rows,
                  const Columns& columns) {
  check_input(ctx, op, "labels", labels);
  check_shape(op, "labels", labels, {rows});
  check_dtype(op, "labels", labels, DType::I64);
  require(labels.is_contiguous(), "{}: labels {} must be contiguous", op, labels);
  check_range(ctx, op, "label", labels, columns.vocab_size, "a vocabulary", columns.options.ignore_index);
}

void check_weights(const RankContext& ctx, const char* op, const Tensor& weights, int64_t rows, DType dtype) {
  if (!weights) return;
  check_input(ctx, op, "weights", weights);
  check_shape(op, "weights", weights, {rows});
  check_dtype(op, "weights", weights, dtype);
}

}  // namespace

// Equal weights multiply the sum, so that it is rounded once.
Tensor weighted_sum(RankContext& ctx, const Tensor& losses, const Tensor& weights) {
  check_weights(ctx, "weighted_sum", weights, losses.size(0), losses.dtype());
  if (!weights) return sum(ctx, losses);
  if (weights.stride(0) == 0 || losses.size(0) == 1)
    return mul(ctx, sum(ctx, losses), weights.slice(0, 0, 1));
  return sum(ctx, mul(ctx, losses, weights));
}

Tensor cross_entropy(RankContext& ctx, const Tensor& logits, const Tensor& labels,
                     const CrossEntropyOptions& options) {
  check_input(ctx, "cross_entropy", "logits", logits);
  require(logits.rank() == 2 && logits.is_contiguous(),
          "cross_entropy: logits are {}, but they must be [rows, columns], contiguous", logits);
  Columns columns("cross_entropy", options, logits.size(1));
  check_labels(ctx, "cross_entropy", labels, logits.size(0), columns);
  CrossEntropyStats stats = make_stats(ctx, logits.size(0), accumulation_dtype(logits.dtype()), options);
  compute_stats(ctx, logits.detach(), labels, columns, stats);
  LossAndLse result = compute_loss(ctx, stats, labels, columns);
  ctx.trace("cross_entropy", Phase::Forward, 4.0 * static_cast<double>(logits.numel()),
            static_cast<double>(logits.bytes()));
  if (needs_grad(ctx, {&logits}))
    record(ctx, std::make_unique<CrossEntropyNode>(ctx, logits, labels, result.lse, columns), result.loss);
  return result.loss;
}

Tensor linear_cross_entropy(RankContext& ctx, const Tensor& hidden, const Weight& weight,
                            const Tensor& labels, const CrossEntropyOptions& options, double logit_scale,
                            int64_t chunk_rows) {
  const char* op = "linear_cross_entropy";
  const Tensor& w = weight.value;
  check_head(ctx, op, hidden, w);
  Columns columns(op, options, w.size(0));
  check_labels(ctx, op, labels, hidden.size(0), columns);
  require(chunk_rows > 0, "{}: chunks of {} rows", op, chunk_rows);
  int64_t rows = hidden.size(0);
  DType wide = accumulation_dtype(hidden.dtype());
  CrossEntropyStats stats = make_stats(ctx, rows, wide, options);
  {
    Tensor logits = ctx.empty({std::min(rows, chunk_rows), w.size(0)}, wide, MemoryTag::Workspace);
    Tensor x = hidden.detach();
    for_each_chunk(rows, chunk_rows, [&](int64_t begin, int64_t end) {
      Tensor y = logits.slice(0, 0, end - begin);
      ctx.kernels->gemm(
          ctx.kernel_context(),
          {.a = x.slice(0, begin, end), .b = w.detach().transpose(0, 1), .c = y, .alpha = logit_scale});
      compute_stats(ctx, y, labels.slice(0, begin, end), columns, rows_of(stats, begin, end));
    });
  }
  LossAndLse result = compute_loss(ctx, stats, labels, columns);
  ctx.trace(op, Phase::Forward, 2.0 * static_cast<double>(hidden.numel()) * static_cast<double>(w.size(0)),
            static_cast<double>(hidden.bytes() + w.bytes()));
  if (needs_grad(ctx, {&hidden}, {&weight}))
    record(ctx,
           std::make_unique<LinearCrossEntropyNode>(ctx, hidden, weight, labels, result.lse, columns,
                                                    logit_scale, chunk_rows),
           result.loss);
  return result.loss;
}

Tensor linear_cross_entropy_sum(RankContext& ctx, const Tensor& hidden, const Weight& weight,
                                const Tensor& labels, const Tensor& weights,
                                const CrossEntropyOptions& options, int64_t chunk_rows) {
  const char* op = "linear_cross_entropy_sum";
  // A gradient whose memory comes and goes between micro-batches is written in the backward pass alone.
  if (weight.accumulator && weight.accumulator->before_write) {
    return weighted_sum(ctx, linear_cross_entropy(ctx, hidden, weight, labels, options), weights);
  }
  const Tensor w = weight.value.detach(), x = hidden.detach();
  check_head(ctx, op, hidden, w);
  Columns columns(op, options, w.size(0));
  check_labels(ctx, op, labels, hidden.size(0), columns);
  int64_t rows = x.size(0);
  check_weights(ctx, op, weights, rows, accumulation_dtype(x.dtype()));
  const Tensor scale = weights ? weights : ctx.full({1}, accumulation_dtype(x.dtype()), 1).expand({rows});
  if (chunk_rows <= 0) chunk_rows = chunk_rows_for(rows, w.size(0), x.dtype());
  bool recorded = needs_grad(ctx, {&hidden}, {&weight});
  GradAccumulator* accumulator = recorded ? weight.accumulator : nullptr;
  Tensor losses = ctx.empty({rows}, accumulation_dtype(x.dtype())), dhidden;
  if (recorded && hidden.grad_slot()) dhidden = ctx.empty_like(x);
  {
    auto kernels = ctx.kernel_context();
    const int64_t most = std::min(rows, chunk_rows);
    Tensor logits = ctx.empty({most, w.size(0)}, x.dtype(), MemoryTag::Workspace);
    const ChunkMemory memory(ctx, most, w, options);
    for_each_chunk(rows, chunk_rows, [&](int64_t begin, int64_t end) {
      Tensor part = x.slice(0, begin, end), y = logits.slice(0, 0, end - begin),
             wanted = labels.slice(0, begin, end);
      const bool known = compute_logits(ctx, part, w, wanted, columns, memory, y);
      losses_and_gradient(ctx, y, wanted, columns, memory, known, scale.slice(0, begin, end), recorded,
                          losses.slice(0, begin, end));
      trace(ctx, "cross_entropy", Phase::Forward, 8.0 * static_cast<double>(y.numel()), {&y, &y});
      if (dhidden) {
        ctx.kernels->gemm(kernels, {.a = y, .b = w, .c = dhidden.slice(0, begin, end)});
        trace(ctx, "head", Phase::BackwardData, 2.0 * static_cast<double>(part.numel() * w.size(0)),
              {&part, &w, &y});
      }
      if (accumulator) {
        const Tensor& sum = accumulator->main_grad;
        ctx.kernels->gemm(kernels,
                          {.a = y.transpose(0, 1), .b = part, .c = sum, .beta = accumulator->beta()});
        trace(ctx, "head", Phase::BackwardWeight, 2.0 * static_cast<double>(part.numel() * w.size(0)),
              {&part, &y, &sum});
        accumulator->wrote_early();
      }
    });
  }
  Tensor total = weighted_sum(ctx, losses, weights);
  if (recorded) record(ctx, std::make_unique<EarlyGradientsNode>(hidden, weight, std::move(dhidden)), total);
  return total;
}

}  // namespace megatron::ops
