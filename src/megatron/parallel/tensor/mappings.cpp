#include "megatron/parallel/tensor/mappings.h"

#include "megatron/ops/shape.h"

namespace megatron {
namespace {

enum class Mapping { AllReduce, AllGather, ReduceScatter };

Tensor apply(RankContext& ctx, Mapping mapping, const Tensor& x, const ProcessGroup& group) {
  Shape shape = x.shape();
  switch (mapping) {
    case Mapping::AllReduce: {
      Tensor sum = ctx.empty_like(x);
      ctx.kernels->copy(ctx.kernel_context(), {x, sum});
      group.all_reduce(sum).wait();
      return sum;
    }
    case Mapping::AllGather: {
      shape[0] *= group.size();
      Tensor whole = ctx.empty(shape, x.dtype());
      group.all_gather(x, whole).wait();
      return whole;
    }
    case Mapping::ReduceScatter: {
      require(shape[0] % group.size() == 0,
              "sequence parallelism: {} tokens cannot be split over {} ranks; choose a sequence length that "
              "divides",
              shape[0], group.size());
      shape[0] /= group.size();
      Tensor part = ctx.empty(shape, x.dtype());
      group.reduce_scatter(x, part).wait();
      return part;
    }
  }
  return {};
}

class MappingNode final : public Node {
 public:
  MappingNode(GradSlot slot, const TensorParallel& tp, const char* name, bool identity, Mapping mapping)
      : slot_(slot), group_(tp.group), name_(name), identity_(identity), mapping_(mapping) {}
  const char* name() const override { return name_; }
  void backward_data(RankContext& ctx, Tape& tape) override {
    Tensor grad = tape.take_grad(output());
    tape.add_grad(ctx, slot_, identity_ ? std::move(grad) : apply(ctx, mapping_, grad, group_));
  }

 private:
  GradSlot slot_;
  ProcessGroup group_;
  const char* name_;
  bool identity_;
  Mapping mapping_;
};

}  // namespace

Tensor enter_tensor_parallel(RankContext& ctx, const Tensor& x, const TensorParallel& tp) {
  if (tp.size() == 1) return x;
  bool gather = tp.splits_tokens();
  Tensor y = gather ? apply(ctx, Mapping::AllGather, x.detach(), tp.group) : x.detach();
  if (ctx.tracks(x))
    record(ctx,
           std::make_unique<MappingNode>(x.grad_slot(), tp, "enter_tensor_parallel", false,
                                         gather ? Mapping::ReduceScatter : Mapping::AllReduce),
           y);
  return y;
}

Tensor leave_tensor_parallel(RankContext& ctx, const Tensor& x, const TensorParallel& tp) {
  if (tp.size() == 1) return x;
  bool scatter = tp.splits_tokens();
  Tensor y = apply(ctx, scatter ? Mapping::ReduceScatter : Mapping::AllReduce, x.detach(), tp.group);
  if (ctx.tracks(x))
    record(ctx,
           std::make_unique<MappingNode>(x.grad_slot(), tp, "leave_tensor_parallel", !scatter,
                                         Mapping::AllGather),
           y);
  return y;
}

Tensor sum_tensor_parallel(RankContext& ctx, const Tensor& x, const TensorParallel& tp) {
  if (tp.size() == 1) return x;
  Tensor y = apply(ctx, Mapping::AllReduce, x.detach(), tp.group);
  if (ctx.tracks(x))
    record(ctx,
           std::make_unique<MappingNode>(x.grad_slot(), tp, "sum_tensor_parallel", false, Mapping::AllReduce),
           y);
  return y;
}

Tensor with_rows(RankContext& ctx, const Tensor& x, int64_t rows) {
  if (x.size(0) == rows) return x;
  if (x.size(0) > rows) return ops::slice(ctx, x, 0, 0, rows);
  Shape shape = x.shape();
  shape[0] = rows - x.size(0);
  const Tensor parts[] = {x, ctx.zeros(shape, x.dtype())};
  return ops::concat(ctx, parts, 0);
}

Tensor with_padding(RankContext& ctx, const Tensor& x, const TensorParallel& tp) {
  return tp.pads_tokens() ? with_rows(ctx, x, tp.token_rows(x.size(0)) * tp.size()) : x;
}

Tensor without_padding(RankContext& ctx, const Tensor& x, const SeqInfo& seq, const TensorParallel& tp) {
  return tp.pads_tokens() ? with_rows(ctx, x, seq.positions.size(0)) : x;
}

Tensor rows_from(RankContext& ctx, const Tensor& all, int64_t begin, int64_t rows) {
  const int64_t tokens = all.size(0), first = std::min(begin, tokens), end = std::min(begin + rows, tokens);
  if (end - first == rows) return all.slice(0, first, end);
  Shape shape = all.shape();
  shape[0] = rows;
  Tensor own = ctx.zeros(shape, all.dtype());
  if (end > first)
    ctx.kernels->copy(ctx.kernel_context(), {all.slice(0, first, end), own.slice(0, 0, end - first)});
  return own;
}

}  // namespace megatron
