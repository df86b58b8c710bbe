#include "megatron/autograd/rematerialize.h"

namespace megatron {
namespace {

class Remade final : public PackedTensor {
 public:
  Remade(RecomputeFn recompute, const Tensor& like)
      : recompute_(std::move(recompute)), shape_(like.shape()) {}
  Tensor unpack(RankContext& ctx) override {
    NoGrad no_grad(ctx);
    Tensor made = recompute_(ctx);
    require(made.shape() == shape_, "a tensor of shape {} was made again as {}", shape_, made);
    return made;
  }

 private:
  RecomputeFn recompute_;
  Shape shape_;
};

}  // namespace

bool same_tensor(const Tensor& a, const Tensor& b) {
  return a.storage().same(b.storage()) && a.offset() == b.offset() && a.shape() == b.shape() &&
         a.strides() == b.strides();
}

Rematerialize::Rematerialize(RankContext& ctx, const Tensor& tensor, RecomputeFn recompute)
    : tensor_(tensor.detach()), recompute_(std::move(recompute)), previous_(ctx.packer), scope_(ctx, this) {}

std::unique_ptr<PackedTensor> Rematerialize::pack(RankContext& ctx, const Tensor& tensor) {
  if (same_tensor(tensor, tensor_)) return std::make_unique<Remade>(recompute_, tensor);
  return previous_ ? previous_->pack(ctx, tensor) : nullptr;
}

}  // namespace megatron
