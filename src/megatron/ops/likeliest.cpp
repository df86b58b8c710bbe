#include "megatron/ops/likeliest.h"

#include <algorithm>
#include <limits>

#include "megatron/ops/check.h"

namespace megatron::ops {
namespace {

constexpr double kLeast = 1e-8;  // of what known tokens leave

int64_t real_columns(const Tensor& logits, const KlDivergenceOptions& options) {
  const int64_t columns = logits.size(1);
  return std::clamp<int64_t>((options.vocab_size > 0 ? options.vocab_size : columns) - options.vocab_begin, 0,
                             columns);
}

// ln of what is left of 1 by Σ exp over each row of log_probs where `known` (0 or 1).
Tensor log_remainder(RankContext& ctx, const Tensor& log_probs, const Tensor& known,
                     const std::function<void(RankContext&, const Tensor&)>& sum) {
  const auto kernels = ctx.kernel_context();
  const int64_t rows = log_probs.size(0), k = log_probs.size(1);
  const Tensor probs = ctx.empty(log_probs.shape(), log_probs.dtype(), MemoryTag::Workspace);
  const Tensor rest = ctx.empty({rows}, log_probs.dtype());
  ctx.kernels->unary(kernels, {.kind = Unary::Exp, .x = log_probs, .bias = {}, .y = probs});
  ctx.kernels->binary(kernels, {Binary::Mul, probs, known, probs});
  ctx.kernels->reduce(kernels, {Reduction::Sum, probs, rest, rows, k, 1});
  if (sum) sum(ctx, rest);
  const Tensor one = ctx.full({1}, rest.dtype(), 1), least = ctx.full({1}, rest.dtype(), kLeast);
  ctx.kernels->binary(kernels, {Binary::Sub, one.expand(rest.shape()), rest, rest});
  ctx.kernels->binary(kernels, {Binary::Max, rest, least.expand(rest.shape()), rest});
  ctx.kernels->unary(kernels, {.kind = Unary::Log, .x = rest, .bias = {}, .y = rest});
  return rest;
}

}  // namespace

Likeliest likeliest_tokens(RankContext& ctx, const Tensor& logits, int64_t k,
                           const KlDivergenceOptions& options) {
  check_input(ctx, "likeliest_tokens", "logits", logits);
  const auto kernels = ctx.kernel_context();
  const DType wide = accumulation_dtype(logits.dtype());
  const int64_t rows = logits.size(0), real = real_columns(logits, options), found = std::min(k, real);
  Likeliest result{ctx.full({rows, k}, DType::I64, -1), ctx.full({rows, k}, wide, 0)};
  const Tensor lse = log_sum_exp(ctx, logits.detach(), options);
  if (found == 0 || rows == 0) return result;
  const Tensor own = ctx.empty({rows, real}, wide, MemoryTag::Workspace);
  ctx.kernels->copy(kernels, {logits.detach().slice(1, 0, real), own});
  const Tensor values = ctx.empty({rows, found}, wide), indices = ctx.empty({rows, found}, DType::I64);
  ctx.kernels->top_k(kernels, {own, values, indices});
  ctx.kernels->binary(kernels, {Binary::Sub, values, lse.view({rows, 1}).expand(values.shape()), values});
  const Tensor ids = ctx.empty(indices.shape(), DType::F64);  // arithmetic is of floating numbers
  const Tensor begin = ctx.full({1, 1}, DType::F64, static_cast<double>(options.vocab_begin));
  ctx.kernels->copy(kernels, {indices, ids});
  ctx.kernels->binary(kernels, {Binary::Add, ids, begin.expand(ids.shape()), ids});
  ctx.kernels->copy(kernels, {ids, result.tokens.slice(1, 0, found)});
  ctx.kernels->copy(kernels, {values, result.log_probs.slice(1, 0, found)});
  return result;
}

Tensor completed_logits(RankContext& ctx, const Tensor& student, const Likeliest& teacher,
                        const KlDivergenceOptions& options) {
  const char* op = "completed_logits";
  check_input(ctx, op, "student", student);
  check_input(ctx, op, "tokens", teacher.tokens);
  check_input(ctx, op, "log_probs", teacher.log_probs);
  const DType wide = accumulation_dtype(student.dtype());
  const Shape shape = student.shape();
  require(student.rank() == 2 && teacher.tokens.rank() == 2 && teacher.tokens.size(0) == student.size(0),
          "{}: tokens {} are not those of logits {}", op, teacher.tokens, student);
  check_shape(op, "log_probs", teacher.log_probs, teacher.tokens.shape());
  check_dtype(op, "log_probs", teacher.log_probs, wide);
  const auto kernels = ctx.kernel_context();
  const Tensor own = detach_contiguous(ctx, student), lse = log_sum_exp(ctx, own, options);
  const int64_t rows = shape[0], k = teacher.tokens.size(1), begin = options.vocab_begin;
  const Shape few{rows, k};

  // Which of them this rank has, which are known at all (0 or 1), and in which of this rank's columns.
  const Tensor ids = ctx.empty(few, DType::F64);  // arithmetic is of floating numbers
  ctx.kernels->copy(kernels, {teacher.tokens, ids});
  const auto constant = [&](double value) { return ctx.full({1, 1}, DType::F64, value).expand(few); };
  const Tensor zero = ctx.full({1, 1}, wide, 0), one = ctx.full({1, 1}, wide, 1);
  const auto one_within = [&](double low, double high) {
    const Tensor above = ctx.empty(few, DType::Bool), below = ctx.empty(few, DType::Bool);
    const Tensor within = ctx.empty(few, wide);
    ctx.kernels->compare(kernels, {Comparison::LessEqual, constant(low), ids, above});
    ctx.kernels->compare(kernels, {Comparison::Less, ids, constant(high), below});
    ctx.kernels->where(kernels, {above, one.expand(few), zero.expand(few), within});
    ctx.kernels->where(kernels, {below, within, zero.expand(few), within});
    return within;
  };
  const auto end = static_cast<double>(begin + real_columns(own, options));
  const Tensor known = one_within(0, 0x1p62), here = one_within(static_cast<double>(begin), end);
  const Tensor columns = ctx.empty(few, DType::I64), is_here = ctx.empty(few, DType::Bool);
  ctx.kernels->compare(kernels, {Comparison::Less, zero.expand(few), here, is_here});
  ctx.kernels->binary(kernels, {Binary::Sub, ids, constant(static_cast<double>(begin)), ids});
  ctx.kernels->where(kernels, {is_here, ids, constant(0), ids});
  ctx.kernels->copy(kernels, {ids, columns});

  const Tensor left = log_remainder(ctx, teacher.log_probs, known, {});
  const Tensor widened = ctx.empty(shape, wide);
  ctx.kernels->copy(kernels, {own, widened});
  const Tensor chosen = ctx.empty(few, wide);
  ctx.kernels->gather_columns(kernels, {widened, columns, chosen});
  ctx.kernels->binary(kernels, {Binary::Sub, chosen, lse.view({rows, 1}).expand(few), chosen});
  const Tensor left_by_student = log_remainder(ctx, chosen, here, options.sum);

  // The others: s − ln Σ exp s + ln (rest of the teacher) − ln (rest of the student).
  ctx.kernels->binary(kernels, {Binary::Sub, left, left_by_student, left});
  ctx.kernels->binary(kernels, {Binary::Sub, left, lse, left});
  ctx.kernels->binary(kernels, {Binary::Add, widened, left.view({rows, 1}).expand(shape), widened});
  const Tensor values = ctx.empty(few, wide), at = ctx.empty(shape, wide), which = ctx.empty(shape, wide);
  ctx.kernels->binary(kernels, {Binary::Mul, teacher.log_probs, here, values});
  ctx.kernels->scatter_columns(kernels, {values, columns, at});
  ctx.kernels->scatter_columns(kernels, {here, columns, which});
  const Tensor is_known = ctx.empty(shape, DType::Bool);
  ctx.kernels->compare(kernels, {Comparison::Less, zero.expand(shape), which, is_known});
  ctx.kernels->where(kernels, {is_known, at, widened, widened});
  ctx.trace(op, Phase::Forward, 6.0 * static_cast<double>(own.numel()),
            6.0 * static_cast<double>(widened.bytes()));
  return widened;
}

}  // namespace megatron::ops
