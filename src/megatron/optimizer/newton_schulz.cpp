#include "megatron/optimizer/newton_schulz.h"

#include "megatron/base/error.h"

namespace megatron {
namespace {

constexpr double kSmallestNorm = 1e-7;

// X / max(‖X‖, 1e-7), in place.
void normalize(RankContext& ctx, const Tensor& x, const ShardedMatrix* split) {
  const auto kernels = ctx.kernel_context();
  const int64_t count = x.size(0);
  Tensor norms = ctx.zeros({count}, DType::F64);
  for (int64_t i = 0; i < count; ++i) {
    const Tensor one = x.select(0, i);
    ctx.kernels->sum_squares(kernels, {{&one, 1}, norms.slice(0, i, i + 1)});
  }
  if (split) split->group.all_reduce(norms).wait();
  const Tensor smallest = ctx.full({count}, DType::F64, kSmallestNorm);
  ctx.kernels->unary(kernels, {.kind = Unary::Sqrt, .x = norms, .y = norms});
  ctx.kernels->binary(kernels, {Binary::Max, norms, smallest, norms});
  Tensor divisors = ctx.empty({count, 1, 1}, x.dtype(), MemoryTag::Workspace);
  ctx.kernels->copy(kernels, {norms.view({count, 1, 1}), divisors});
  ctx.kernels->binary(kernels, {Binary::Div, x, divisors.expand(x.shape()), x});
}

}  // namespace

std::vector<NewtonSchulzStep> newton_schulz_steps(MuonCoefficients kind, int64_t count) {
  static const std::vector<NewtonSchulzStep> simple = {{3.4445, -4.7750, 2.0315}},
                                             quintic = {{4.0848, -6.8946, 2.9270},
                                                        {3.9505, -6.3029, 2.6377},
                                                        {3.7418, -5.5913, 2.3037},
                                                        {2.8769, -3.1427, 1.2046},
                                                        {2.8366, -3.0525, 1.2012}};
  require(kind != MuonCoefficients::polar_express, "Newton-Schulz: polar_express is not built");
  const auto& set = kind == MuonCoefficients::simple ? simple : quintic;
  std::vector<NewtonSchulzStep> steps;
  for (int64_t i = 0; i < count; ++i) steps.push_back(set[static_cast<size_t>(i) % set.size()]);
  return steps;
}

Tensor orthogonalize(RankContext& ctx, const Tensor& matrices, std::span<const NewtonSchulzStep> steps,
                     const ShardedMatrix* split) {
  require(matrices.rank() == 3, "Newton-Schulz: {} is not [count, rows, columns]", matrices);
  const auto kernels = ctx.kernel_context();
  // The Gram matrix is of the shorter dimension, or sums over the one that is split.
  const bool turned = split ? split->dim == 0 : matrices.size(1) > matrices.size(2);
  const Tensor source = turned ? matrices.transpose(1, 2) : matrices;
  const auto like = [&](const Shape& shape) {
    return ctx.empty(shape, matrices.dtype(), MemoryTag::Workspace);
  };
  Tensor x = like(source.shape()), next = like(source.shape());
  const Shape square = {source.size(0), source.size(1), source.size(1)};
  Tensor gram = like(square), polynomial = like(square);
  ctx.kernels->copy(kernels, {source, x});
  normalize(ctx, x, split);
  for (const auto& [a, b, c] : steps) {
    ctx.kernels->gemm(kernels, {.a = x, .b = x.transpose(1, 2), .c = gram});
    if (split) split->group.all_reduce(gram).wait();
    ctx.kernels->copy(kernels, {gram, polynomial});
    ctx.kernels->gemm(kernels, {.a = gram, .b = gram, .c = polynomial, .alpha = c, .beta = b});
    ctx.kernels->copy(kernels, {x, next});
    ctx.kernels->gemm(kernels, {.a = polynomial, .b = x, .c = next, .beta = a});
    std::swap(x, next);
  }
  const double rows = static_cast<double>(source.size(1)), elements = static_cast<double>(source.numel());
  ctx.trace("newton_schulz", Phase::Other, static_cast<double>(steps.size()) * rows * (4 * elements),
            static_cast<double>(steps.size()) * 6 * static_cast<double>(source.bytes()));
  if (!turned) return x;
  Tensor result = like(matrices.shape());
  ctx.kernels->copy(kernels, {x.transpose(1, 2), result});
  return result;
}

}  // namespace megatron
