#include "megatron/optimizer/soap.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "megatron/optimizer/eigenbasis.h"

namespace megatron {
namespace {

Tensor empty(RankContext& ctx, const Shape& shape, DType dtype) {
  return ctx.empty(shape, dtype, MemoryTag::Workspace);
}

// a · b of each pair of matrices.
Tensor gemm(RankContext& ctx, const Tensor& a, const Tensor& b) {
  Tensor c = empty(ctx, {a.size(0), a.size(1), b.size(2)}, a.dtype());
  ctx.kernels->gemm(ctx.kernel_context(), {.a = a, .b = b, .c = c});
  return c;
}

Tensor transposed(const Tensor& x) { return x.transpose(1, 2); }

// Qᴸᵀ · X · Qᴿ.
Tensor project_in(RankContext& ctx, const Tensor& x, const Tensor& left, const Tensor& right) {
  return gemm(ctx, gemm(ctx, transposed(left), x), right);
}

// Qᴸ · X · Qᴿᵀ.
Tensor project_out(RankContext& ctx, const Tensor& x, const Tensor& left, const Tensor& right) {
  return gemm(ctx, gemm(ctx, left, x), transposed(right));
}

Tensor blended(RankContext& ctx, double keep, const Tensor& old, const Tensor& fresh) {
  Tensor out = empty(ctx, old.shape(), old.dtype());
  ctx.kernels->axpby(ctx.kernel_context(),
                     {.alpha = 1 - keep, .a = fresh, .beta = keep, .b = old, .out = out});
  return out;
}

// 1 / (rows · max(λ, ε)), a number a vector of the basis, as a column.
Tensor inverse_values(RankContext& ctx, const Tensor& values, int64_t rows, double epsilon) {
  const auto kernels = ctx.kernel_context();
  Tensor out = empty(ctx, values.shape(), values.dtype());
  const auto constant = [&](double x) {
    return ctx.full({1}, values.dtype(), x, MemoryTag::Workspace).expand(values.shape());
  };
  ctx.kernels->binary(kernels, {Binary::Max, values, constant(epsilon), out});
  ctx.kernels->binary(kernels, {Binary::Div, constant(1 / static_cast<double>(rows)), out, out});
  return out.view({values.size(0), values.size(1), 1});
}

// Xᵀ · Q diag(weights) Qᵀ · X.
Tensor weighted_gram(RankContext& ctx, const Tensor& x, const Tensor& basis, const Tensor& weights) {
  const Tensor projected = gemm(ctx, transposed(basis), x);
  Tensor scaled = empty(ctx, projected.shape(), projected.dtype());
  ctx.kernels->binary(ctx.kernel_context(),
                      {Binary::Mul, projected, weights.expand(projected.shape()), scaled});
  return gemm(ctx, transposed(projected), scaled);
}

std::vector<double> read(RankContext& ctx, const Tensor& x) {
  Tensor wide = empty(ctx, x.shape(), DType::F64);
  ctx.kernels->copy(ctx.kernel_context(), {x, wide});
  return ctx.to_vector<double>(wide);
}

Tensor written(RankContext& ctx, const std::vector<double>& values, const Shape& shape, DType dtype) {
  const Tensor wide = ctx.from_vector(values, shape);
  Tensor out = empty(ctx, shape, dtype);
  ctx.kernels->copy(ctx.kernel_context(), {wide, out});
  return out;
}

struct NewBasis {
  Tensor basis, values;
  Tensor order;  // permutation matrices: column j has a 1 in the row of the vector before it
};

// Finds the eigenbasis of each factor [count, n, n]: by a whole decomposition at first, then by a step of
// power iteration and QR from `basis`. Where a factor is not finite the gate is closed, and any basis does.
NewBasis follow(RankContext& ctx, const Tensor& factor, const Tensor& basis, bool first) {
  const int64_t count = factor.size(0), n = factor.size(1);
  const DType dtype = factor.dtype();
  if (ctx.device.is_meta())
    return {empty(ctx, factor.shape(), dtype), empty(ctx, {count, n}, dtype),
            empty(ctx, factor.shape(), dtype)};
  const double epsilon =
      dtype == DType::F64 ? std::numeric_limits<double>::epsilon() : std::numeric_limits<float>::epsilon();
  const std::vector<double> matrices = read(ctx, factor), bases = read(ctx, transposed(basis));
  std::vector<double> vectors, values, order(static_cast<size_t>(count * n * n));
  for (int64_t e = 0; e < count; ++e) {
    const std::vector<double> matrix(matrices.begin() + e * n * n, matrices.begin() + (e + 1) * n * n),
        old(bases.begin() + e * n * n, bases.begin() + (e + 1) * n * n);
    Eigenbasis found;
    if (!std::all_of(matrix.begin(), matrix.end(), [](double x) { return std::isfinite(x); })) {
      found = {.values = std::vector<double>(n), .vectors = old, .order = {}};
      for (int64_t j = 0; j < n; ++j) found.order.push_back(j);
    } else {
      found = first ? symmetric_eigenbasis(matrix, n, epsilon) : refined_eigenbasis(matrix, old, n, epsilon);
    }
    values.insert(values.end(), found.values.begin(), found.values.end());
    vectors.insert(vectors.end(), found.vectors.begin(), found.vectors.end());
    for (int64_t j = 0; j < n; ++j) order[(e * n + found.order[j]) * n + j] = 1;
  }
  Tensor rows = written(ctx, vectors, factor.shape(), dtype), columns = empty(ctx, factor.shape(), dtype);
  ctx.kernels->copy(ctx.kernel_context(), {transposed(rows), columns});
  return {columns, written(ctx, values, {count, n}, dtype), written(ctx, order, factor.shape(), dtype)};
}

// How a state is sharded that has [experts here, …], or that a whole matrix has.
ShardSpec state_shard(const Parameter& parameter, const Shape& local) {
  if (parameter.shard.local_shape.rank() == 2) return ShardSpec::whole(local);
  ShardSpec spec{.global_shape = local, .local_shape = local, .blocks = {}};
  spec.global_shape[0] = parameter.shard.global_shape[0];
  for (const ShardBlock& block : parameter.shard.blocks) {
    ShardBlock own{.global_offset = local, .local_offset = local, .extent = local};
    for (int dim = 0; dim < local.rank(); ++dim) own.global_offset[dim] = own.local_offset[dim] = 0;
    own.global_offset[0] = block.global_offset[0];
    own.local_offset[0] = block.local_offset[0];
    own.extent[0] = block.extent[0];
    const bool known = std::any_of(spec.blocks.begin(), spec.blocks.end(), [&](const ShardBlock& other) {
      return other.local_offset[0] == own.local_offset[0];
    });
    if (!known) spec.blocks.push_back(own);
  }
  return spec;
}

}  // namespace

Soap::Soap(RankContext& ctx, std::vector<ParameterSlice> slices, const SoapOptions& options)
    : Optimizer(ctx, std::move(slices), options.groups), options_(options) {
  for (const ParameterSlice& slice : slices_) {
    const Shape &local = slice.parameter->shard.local_shape, &global = slice.parameter->shard.global_shape;
    const int rank = local.rank();
    require(rank == 2 || rank == 3, "SOAP: {} is no matrix: {}", slice.parameter->name, local);
    const int64_t count = rank == 3 ? local[0] : 1;
    const DType dtype = accumulation_dtype(slice.value.dtype());
    const auto side = [&](int64_t n) {
      Side one{ctx.zeros({count, n, n}, dtype, MemoryTag::Optimizer),
               ctx.zeros({count, n, n}, dtype, MemoryTag::Optimizer),
               ctx.zeros({count, n}, dtype, MemoryTag::Optimizer)};
      if (ctx.device.is_meta()) return one;
      std::vector<double> identity(static_cast<size_t>(count * n * n));
      for (int64_t i = 0; i < count * n; ++i) identity[i * n + i % n] = 1;
      ctx.kernels->copy(ctx.kernel_context(), {ctx.from_vector(identity, one.basis.shape()), one.basis});
      return one;
    };
    const int64_t rows = global[rank - 2], columns = global[rank - 1];
    states_.push_back({side(rows), side(columns),
                       ctx.zeros({count, rows, columns}, dtype, MemoryTag::Optimizer),
                       ctx.zeros({count, rows, columns}, dtype, MemoryTag::Optimizer)});
  }
}

const MatrixGroups& Soap::groups_of(const Parameter& parameter) const {
  return parameter.expert ? options_.expert : options_.dense;
}

Tensor Soap::whole_gradient(RankContext& ctx, size_t i, const Tensor& gradient_scale) const {
  const ParameterSlice& slice = slices_[i];
  const MatrixGroups& groups = groups_of(*slice.parameter);
  const Tensor own = own_matrix(ctx, slice, groups.shard, scaled_gradient(ctx, i, gradient_scale));
  return whole_matrix(ctx, *slice.parameter, groups.tensor, own).view(states_[i].first.shape());
}

std::array<Tensor, 2> Soap::factors(RankContext& ctx, const State& state, const Tensor& gradient) const {
  const double beta = options_.shampoo_beta, t = static_cast<double>(steps_ + 1);
  const double keep = 1 - (beta < 1 ? (1 - beta) / (1 - std::pow(beta, t)) : 1 / t);
  const Tensor turned = transposed(gradient);
  const int64_t rows = gradient.size(1), columns = gradient.size(2);
  Tensor left, right;
  if (options_.kl_shampoo) {
    left = weighted_gram(ctx, turned, state.right.basis,
                         inverse_values(ctx, state.right.values, columns, options_.epsilon));
    right = weighted_gram(ctx, gradient, state.left.basis,
                          inverse_values(ctx, state.left.values, rows, options_.epsilon));
  } else {
    left = gemm(ctx, gradient, turned);
    right = gemm(ctx, turned, gradient);
  }
  return {blended(ctx, keep, state.left.factor, left), blended(ctx, keep, state.right.factor, right)};
}

Tensor Soap::direction(RankContext& ctx, State& state, const Tensor& gradient, const Tensor& gate) const {
  const auto kernels = ctx.kernel_context();
  const double t = static_cast<double>(steps_ + 1);
  const auto [left_factor, right_factor] = factors(ctx, state, gradient);
  const NewBasis left = follow(ctx, left_factor, state.left.basis, steps_ == 0),
                 right = follow(ctx, right_factor, state.right.basis, steps_ == 0);
  const Tensor projected = project_in(ctx, gradient, left.basis, right.basis);
  Tensor first = project_in(ctx, project_out(ctx, state.first, state.left.basis, state.right.basis),
                            left.basis, right.basis);
  first = blended(ctx, options_.beta1, first, projected);
  Tensor squares = empty(ctx, projected.shape(), projected.dtype());
  ctx.kernels->binary(kernels, {Binary::Mul, projected, projected, squares});
  const Tensor second =
      blended(ctx, options_.beta2, project_in(ctx, state.second, left.order, right.order), squares);
  // (m / (1 − β₁ᵗ)) / (√(v / (1 − β₂ᵗ)) + ε).
  Tensor update = empty(ctx, first.shape(), first.dtype()), root = squares;
  ctx.kernels->axpby(kernels, {.alpha = 1 / (1 - std::pow(options_.beta1, t)), .a = first, .out = update});
  ctx.kernels->axpby(kernels, {.alpha = 1 / (1 - std::pow(options_.beta2, t)), .a = second, .out = root});
  ctx.kernels->unary(kernels, {.kind = Unary::Sqrt, .x = root, .y = root});
  const Tensor little = ctx.full({1}, root.dtype(), options_.epsilon, MemoryTag::Workspace);
  ctx.kernels->binary(kernels, {Binary::Add, root, little.expand(root.shape()), root});
  ctx.kernels->binary(kernels, {Binary::Div, update, root, update});
  update = project_out(ctx, update, left.basis, right.basis);
  for (const auto& [fresh, target] : {std::pair{left_factor, state.left.factor},
                                      {right_factor, state.right.factor},
                                      {left.basis, state.left.basis},
                                      {right.basis, state.right.basis},
                                      {left.values, state.left.values},
                                      {right.values, state.right.values},
                                      {first, state.first},
                                      {second, state.second}})
    store(ctx, fresh, target, gate);
  const auto m = static_cast<double>(gradient.size(1)), n = static_cast<double>(gradient.size(2)),
             count = static_cast<double>(gradient.size(0));
  ctx.trace("soap", Phase::Other, count * (20 * m * n * (m + n) + 4 * (m * m * m + n * n * n)),
            static_cast<double>(gradient.bytes()) * 40);
  return update;
}

void Soap::step(RankContext& ctx, const Rates& rates, const Tensor& gradient_scale, const Tensor& gate) {
  const auto kernels = ctx.kernel_context();
  for (size_t i = 0; i < slices_.size(); ++i) {
    const ParameterSlice& slice = slices_[i];
    const Parameter& parameter = *slice.parameter;
    const Tensor& target = masters_[i] ? masters_[i] : slice.value;
    const Tensor whole = direction(ctx, states_[i], whole_gradient(ctx, i, gradient_scale), gate);
    const Shape& local = parameter.shard.local_shape;
    Shape shape = parameter.shard.global_shape;
    if (shape.rank() == 3) shape[0] = local[0];
    Tensor own = empty(ctx, local, whole.dtype());
    take_blocks(ctx, parameter, whole.view(shape), own);
    Tensor update = empty(ctx, target.shape(), target.dtype());
    const double lr = lr_of(slice, rates), decay = decay_of(slice, rates, options_.weight_decay);
    ctx.kernels->axpby(
        kernels,
        {.alpha = -lr, .a = part_of(slice, own), .beta = 1 - lr * decay, .b = target, .out = update});
    store(ctx, update, target, gate);
    if (masters_[i]) ctx.kernels->copy(kernels, {masters_[i], slice.value});
  }
  ++steps_;
}

std::vector<OptimizerTensor> Soap::state() const {
  std::vector<OptimizerTensor> list;
  append_masters(list);
  for (size_t i = 0; i < states_.size(); ++i) {
    const State& state = states_[i];
    const Parameter& parameter = *slices_[i].parameter;
    const bool experts = parameter.shard.local_shape.rank() == 3;
    const auto add = [&](std::string_view kind, const Tensor& tensor) {
      const Tensor own = experts ? tensor : tensor.select(0, 0);
      list.push_back({kind, &slices_[i], own, {}, state_shard(parameter, own.shape())});
    };
    add("L", state.left.factor);
    add("R", state.right.factor);
    add("Q_L", state.left.basis);
    add("Q_R", state.right.basis);
    add("eigvals_L", state.left.values);
    add("eigvals_R", state.right.values);
    add("exp_avg", state.first);
    add("exp_avg_sq", state.second);
  }
  return list;
}

}  // namespace megatron
