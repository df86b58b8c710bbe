#pragma once

#include <functional>
#include <utility>

#include "megatron/autograd/rank_context.h"

namespace megatron::ops {

// Communication that is under way; nothing where nothing was begun.
struct Pending {
  std::function<void()> finish = {};

  void wait() {
    if (finish) std::exchange(finish, nullptr)();
  }
};

// Where the rows of a linear come from and where its results go, if not from and to this rank alone. A route
// decides which rows are multiplied when, and communicates beside that. It does not know how a GEMM is made.
// Columns split over ranks (column-parallel) and the sum over ranks (row-parallel) are in parallel/tensor.
class LinearRoute {
 public:
  // The GEMM of `rows` into `out`; they begin at row `begin` of all that are multiplied.
  using RowGemm = std::function<void(const Tensor& rows, int64_t begin, const Tensor& out)>;

  virtual ~LinearRoute() = default;
  virtual const char* name() const = 0;          // as nodes and messages call it
  virtual bool gathers_input() const = 0;        // x is this rank's share of the rows
  virtual bool gathers_gradient() const = 0;     // so is y, and its gradient
  virtual bool sums_input_gradient() const = 0;  // over ranks, beside the GEMM for the weight's gradient
  // What the rows of every GEMM are a multiple of, for x with `rows`.
  virtual int64_t block_rows(int64_t rows) const = 0;

  // y [.., columns] of x.
  virtual Tensor forward(RankContext& ctx, const Tensor& x, int64_t columns, const RowGemm& gemm) const = 0;
  // The gradient of x [.., columns], complete once `pending` was waited for, and in `all` that of y for all
  // rows. Without a GEMM only the latter.
  virtual Tensor dgrad(RankContext& ctx, const Tensor& dy, int64_t columns, const RowGemm& gemm, Tensor& all,
                       Pending& pending) const = 0;
  // All rows of an x that is a share of them, once `pending` was waited for.
  virtual Tensor all_rows(RankContext& ctx, const Tensor& x, Pending& pending) const = 0;
};

}  // namespace megatron::ops
