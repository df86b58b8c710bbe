#include "megatron/parallel/tensor/split_saved.h"

#include "megatron/autograd/rank_context.h"

namespace megatron {
namespace {

class Part final : public PackedTensor {
 public:
  Part(Tensor own, const ProcessGroup& group) : own_(std::move(own)), group_(group) {}
  Tensor unpack(RankContext& ctx) override {
    Shape shape = own_.shape();
    shape[0] *= group_.size();
    Tensor whole = ctx.empty(shape, own_.dtype());
    group_.all_gather(own_, whole).wait();
    return whole;
  }

 private:
  Tensor own_;
  ProcessGroup group_;
};

}  // namespace

std::unique_ptr<PackedTensor> SplitSaved::pack(RankContext& ctx, const Tensor& tensor) {
  if (group_.size() == 1 || tensor.rank() == 0 || tensor.size(0) % group_.size() != 0) return nullptr;
  int64_t rows = tensor.size(0) / group_.size();
  Tensor mine = tensor.slice(0, rows * group_.rank(), rows * (group_.rank() + 1));
  Tensor own = ctx.empty_like(mine);
  ctx.kernels->copy(ctx.kernel_context(), {mine, own});
  return std::make_unique<Part>(std::move(own), group_);
}

}  // namespace megatron
