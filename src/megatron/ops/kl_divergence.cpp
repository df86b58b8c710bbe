#include "megatron/ops/kl_divergence.h"

#include <algorithm>

#include "megatron/ops/check.h"

namespace megatron::ops {
namespace {

// The softmax of logits, chunk by chunk: what is as wide as the vocabulary and in fp32 exists of few rows at
// a time.
class Chunks {
 public:
  Chunks(RankContext& ctx, const Tensor& logits, const KlDivergenceOptions& options)
      : ctx_(ctx),
        options_(options),
        rows_(logits.size(0)),
        columns_(logits.size(1)),
        wide_(accumulation_dtype(logits.dtype())),
        vocab_size_(options.vocab_size > 0 ? options.vocab_size : columns_),
        valid_(std::clamp<int64_t>(vocab_size_ - options.vocab_begin, 0, columns_)),
        no_labels_(ctx.full({rows_}, DType::I64, -1)) {}

  DType wide() const { return wide_; }
  int64_t columns() const { return columns_; }

  // Calls f(begin, end) for each chunk of rows.
  template <class F>
  void for_each(F&& f) const {
    for (int64_t begin = 0; begin < rows_; begin += step()) f(begin, std::min(rows_, begin + step()));
  }
  Tensor workspace() const {
    return ctx_.empty({std::min(rows_, step()), columns_}, wide_, MemoryTag::Workspace);
  }

  // logits / temperature.
  Tensor cooled(const Tensor& logits) const {
    if (options_.temperature == 1) return logits;
    const Tensor result = ctx_.empty(logits.shape(), wide_, MemoryTag::Workspace);
    ctx_.kernels->axpby(ctx_.kernel_context(),
                        {.alpha = 1 / options_.temperature, .a = logits, .b = {}, .out = result});
    return result;
  }

  // ln Σ exp over the whole vocabulary, [rows].
  Tensor log_sum_exp(const Tensor& logits) const {
    const auto per_row = [&] { return ctx_.empty({rows_}, wide_); };
    CrossEntropyStats stats{per_row(), per_row(), per_row(), {}};
    for_each([&](int64_t begin, int64_t end) {
      ctx_.kernels->cross_entropy_stats(ctx_.kernel_context(), {.logits = cooled(logits.slice(0, begin, end)),
                                                                .labels = no_labels_.slice(0, begin, end),
                                                                .vocab_begin = options_.vocab_begin,
                                                                .valid = valid_,
                                                                .maximum = stats.maximum.slice(0, begin, end),
                                                                .sum_exp = stats.sum_exp.slice(0, begin, end),
                                                                .target = stats.target.slice(0, begin, end),
                                                                .sum_logits = {}});
    });
    if (options_.reduce) options_.reduce(ctx_, stats);
    const auto kernels = ctx_.kernel_context();
    ctx_.kernels->unary(kernels, {.kind = Unary::Log, .x = stats.sum_exp, .bias = {}, .y = stats.sum_exp});
    ctx_.kernels->binary(kernels, {Binary::Add, stats.maximum, stats.sum_exp, stats.maximum});
    return stats.maximum;
  }

  // scale[row] · softmax of a chunk; zero in padding. No column is a label's, so that this is all that the
  // gradient of cross entropy has.
  void softmax(const Tensor& cooled, const Tensor& lse, const Tensor& scale, const Tensor& out) const {
    ctx_.kernels->cross_entropy_grad(ctx_.kernel_context(), {.logits = cooled,
                                                             .labels = no_labels_.slice(0, 0, cooled.size(0)),
                                                             .lse = lse,
                                                             .scale = scale,
                                                             .vocab_begin = options_.vocab_begin,
                                                             .valid = valid_,
                                                             .vocab_size = vocab_size_,
                                                             .dlogits = out});
  }

 private:
  int64_t step() const {
    constexpr int64_t kElements = int64_t{1} << 26;
    return std::max<int64_t>(1, kElements / std::max<int64_t>(1, columns_));
  }

  RankContext& ctx_;
  const KlDivergenceOptions& options_;
  int64_t rows_, columns_;
  DType wide_;
  int64_t vocab_size_, valid_;
  Tensor no_labels_;
};

class KlDivergenceNode final : public Node {
 public:
  KlDivergenceNode(RankContext& ctx, const Tensor& student, Tensor teacher, Tensor student_lse,
                   Tensor teacher_lse, const KlDivergenceOptions& options)
      : student_(ctx, student),
        teacher_(std::move(teacher)),
        student_lse_(std::move(student_lse)),
        teacher_lse_(std::move(teacher_lse)),
        slot_(student.grad_slot()),
        options_(options) {}
  const char* name() const override { return "kl_divergence"; }

  // (q − p) / temperature · what the row's divergence counts.
  void backward_data(RankContext& ctx, Tape& tape) override {
    const Tensor student = student_.get(ctx);
    student_.reset();
    const Chunks chunks(ctx, student, options_);
    const Tensor scale = row_scale(ctx, tape.take_grad(output()));
    const bool fits = teacher_.dtype() == student.dtype() && teacher_.storage().unique();
    const Tensor dstudent = fits ? teacher_ : ctx.empty_like(student);
    const Tensor q = chunks.workspace(), p = chunks.workspace();
    chunks.for_each([&](int64_t begin, int64_t end) {
      const Tensor own = q.slice(0, 0, end - begin), taught = p.slice(0, 0, end - begin),
                   factor = scale.slice(0, begin, end);
      chunks.softmax(chunks.cooled(student.slice(0, begin, end)), student_lse_.slice(0, begin, end), factor,
                     own);
      chunks.softmax(chunks.cooled(teacher_.slice(0, begin, end)), teacher_lse_.slice(0, begin, end), factor,
                     taught);
      ctx.kernels->axpby(
          ctx.kernel_context(),
          {.alpha = 1, .a = own, .beta = -1, .b = taught, .out = dstudent.slice(0, begin, end)});
    });
    ctx.trace("kl_divergence", Phase::BackwardData, 8.0 * static_cast<double>(student.numel()),
              3.0 * static_cast<double>(student.bytes()));
    teacher_ = student_lse_ = teacher_lse_ = {};
    tape.add_grad(ctx, slot_, dstudent);
  }

 private:
  Tensor row_scale(RankContext& ctx, const Tensor& grad) const {
    const Tensor scale = ctx.empty_like(grad);
    ctx.kernels->axpby(ctx.kernel_context(),
                       {.alpha = 1 / options_.temperature, .a = grad, .b = {}, .out = scale});
    return scale;
  }

  Saved student_;
  Tensor teacher_, student_lse_, teacher_lse_;
  GradSlot slot_;
  KlDivergenceOptions options_;
};

}  // namespace

Tensor log_sum_exp(RankContext& ctx, const Tensor& logits, const KlDivergenceOptions& options) {
  KlDivergenceOptions as_they_are = options;
  as_they_are.temperature = 1;
  return Chunks(ctx, logits, as_they_are).log_sum_exp(logits);
}

Tensor kl_divergence(RankContext& ctx, const Tensor& student, Tensor teacher,
                     const KlDivergenceOptions& options) {
  const char* op = "kl_divergence";
  check_input(ctx, op, "student", student);
  check_input(ctx, op, "teacher", teacher);
  require(student.rank() == 2 && student.is_contiguous() && teacher.is_contiguous(),
          "{}: logits are {} and {}, but they must be [rows, columns], contiguous", op, student, teacher);
  check_shape(op, "teacher", teacher, student.shape());
  if (teacher.dtype() != accumulation_dtype(student.dtype()))
    check_dtype(op, "teacher", teacher, student.dtype());
  require(options.temperature > 0, "{}: the temperature is {}, but must be above 0", op, options.temperature);
  require(!options.reduce || (options.vocab_size > 0 && options.sum),
          "{}: with the vocabulary spread over ranks, vocab_size must say how large it is, and sum add up",
          op);
  teacher = teacher.detach();
  const Tensor own = student.detach();
  const Chunks chunks(ctx, own, options);
  const auto kernels = ctx.kernel_context();
  const Tensor student_lse = chunks.log_sum_exp(own), teacher_lse = chunks.log_sum_exp(teacher);
  // Σ p · (ln p − ln q) = Σ p · (t − s) + ln Σ exp s − ln Σ exp t.
  Tensor losses = ctx.empty({own.size(0)}, chunks.wide());
  {
    const Tensor one = ctx.full({1}, chunks.wide(), 1);
    const Tensor p = chunks.workspace(), apart = chunks.workspace();
    chunks.for_each([&](int64_t begin, int64_t end) {
      const int64_t rows = end - begin;
      const Tensor s = chunks.cooled(own.slice(0, begin, end)),
                   t = chunks.cooled(teacher.slice(0, begin, end));
      const Tensor weights = p.slice(0, 0, rows), difference = apart.slice(0, 0, rows);
      chunks.softmax(t, teacher_lse.slice(0, begin, end), one.expand({rows}), weights);
      ctx.kernels->axpby(kernels, {.alpha = 1, .a = t, .beta = -1, .b = s, .out = difference});
      ctx.kernels->binary(kernels, {Binary::Mul, weights, difference, difference});
      ctx.kernels->reduce(kernels, {.kind = Reduction::Sum,
                                    .x = difference,
                                    .out = losses.slice(0, begin, end),
                                    .outer = rows,
                                    .n = chunks.columns(),
                                    .inner = 1});
    });
  }
  if (options.sum) options.sum(ctx, losses);
  ctx.kernels->binary(kernels, {Binary::Add, losses, student_lse, losses});
  ctx.kernels->binary(kernels, {Binary::Sub, losses, teacher_lse, losses});
  ctx.trace(op, Phase::Forward, 12.0 * static_cast<double>(own.numel()),
            4.0 * static_cast<double>(own.bytes()));
  if (needs_grad(ctx, {&student}))
    record(ctx,
           std::make_unique<KlDivergenceNode>(ctx, student, std::move(teacher), student_lse, teacher_lse,
                                              options),
           losses);
  return losses;
}

}  // namespace megatron::ops
