#include "megatron/optimizer/newton_schulz.h"

#include <algorithm>

#include "megatron/base/error.h"
#include "megatron/optimizer/muon_matrix.h"

namespace megatron {
namespace {

constexpr double kSmallestNorm = 1e-7;

// X / max(‖X‖, 1e-7), in place.
void normalize(RankContext& ctx, const Tensor& x, const ShardedMatrix* split) {
  const auto kernels = ctx.kernel_context();
  const int64_t count = x.size(0);
  const Tensor norms = matrix_norms(ctx, x, split ? &split->group : nullptr);
  const Tensor smallest = ctx.full({count}, DType::F64, kSmallestNorm);
  ctx.kernels->binary(kernels, {Binary::Max, norms, smallest, norms});
  Tensor divisors = ctx.empty({count, 1, 1}, x.dtype(), MemoryTag::Workspace);
  ctx.kernels->copy(kernels, {norms.view({count, 1, 1}), divisors});
  ctx.kernels->binary(kernels, {Binary::Div, x, divisors.expand(x.shape()), x});
}

struct CoefficientSet {
  std::vector<NewtonSchulzStep> steps;
  bool repeats_last = false;  // further steps are as the last one, not as the first
};

// The published sets, by the names that Megatron-LM's optimizers know.
CoefficientSet coefficients(MuonCoefficients kind) {
  constexpr NewtonSchulzStep simple = {3.4445, -4.7750, 2.0315};
  switch (kind) {
    case MuonCoefficients::simple:
      return {{simple}};
    case MuonCoefficients::quintic:
      return {{{4.0848, -6.8946, 2.9270},
               {3.9505, -6.3029, 2.6377},
               {3.7418, -5.5913, 2.3037},
               {2.8769, -3.1427, 1.2046},
               {2.8366, -3.0525, 1.2012}}};
    case MuonCoefficients::polar_express:
      return {{{8.2051, -22.9019, 16.4607},
               {4.0664, -2.8612, 0.5184},
               {3.9096, -2.8234, 0.5250},
               {3.2856, -2.4153, 0.4853},
               {2.2779, -1.6198, 0.3985},
               {1.8726, -1.2307, 0.3585},
               {1.8564, -1.2132, 0.3568},
               {1.8750, -1.2500, 0.3750}},
              true};
    case MuonCoefficients::cans:
      return {{{8.4703, -25.1081, 18.6293},
               {4.1828, -3.1087, 0.5806},
               {3.9619, -2.9541, 0.5630},
               {3.2866, -2.4647, 0.5074},
               {2.2737, -1.6447, 0.4162}},
              true};
    case MuonCoefficients::aol:
      return {{{4.0098, -7.0585, 2.4635},
               {3.4585, -5.5479, 2.5959},
               {2.7573, -3.2939, 1.4254},
               {2.7215, -3.0494, 1.3169}}};
    case MuonCoefficients::deepseekv4: {
      CoefficientSet set{std::vector<NewtonSchulzStep>(8, simple), true};
      set.steps.insert(set.steps.end(), 2, {2.0, -1.5, 0.5});
      return set;
    }
    case MuonCoefficients::cubic5:
      return {{{3.3656576, -3.3420992, 0},
               {2.5744352, -1.4957376, 0},
               {2.5368962, -1.4312570, 0},
               {2.4418906, -1.2764040, 0},
               {2.2230472, -0.9630650, 0}}};
  }
  fail("Newton-Schulz: unknown coefficients");
}

}  // namespace

std::vector<NewtonSchulzStep> newton_schulz_steps(MuonCoefficients kind, int64_t count) {
  const auto [set, repeats_last] = coefficients(kind);
  require(kind != MuonCoefficients::cubic5 || count == static_cast<int64_t>(set.size()),
          "Newton-Schulz: cubic5 has {} steps, not {}", set.size(), count);
  std::vector<NewtonSchulzStep> steps;
  for (size_t i = 0; i < static_cast<size_t>(count); ++i)
    steps.push_back(repeats_last ? set[std::min(i, set.size() - 1)] : set[i % set.size()]);
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
