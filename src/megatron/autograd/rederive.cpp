#include "megatron/autograd/rederive.h"

namespace megatron {
namespace {

class Remade final : public PackedTensor {
 public:
  Remade(Recipe recipe, const Tensor& like) : recipe_(std::move(recipe)), shape_(like.shape()) {}
  Tensor unpack(RankContext& ctx) override {
    NoGrad no_grad(ctx);
    Tensor made = recipe_(ctx);
    require(made.shape() == shape_, "a tensor of shape {} was made again as {}", shape_, made);
    return made;
  }

 private:
  Recipe recipe_;
  Shape shape_;
};

}  // namespace

bool same_tensor(const Tensor& a, const Tensor& b) {
  return a.storage().same(b.storage()) && a.offset() == b.offset() && a.shape() == b.shape() &&
         a.strides() == b.strides();
}

Rederive::Rederive(RankContext& ctx, const Tensor& tensor, Recipe recipe)
    : tensor_(tensor.detach()), recipe_(std::move(recipe)), previous_(ctx.packer), scope_(ctx, this) {}

std::unique_ptr<PackedTensor> Rederive::pack(RankContext& ctx, const Tensor& tensor) {
  if (same_tensor(tensor, tensor_)) return std::make_unique<Remade>(recipe_, tensor);
  return previous_ ? previous_->pack(ctx, tensor) : nullptr;
}

}  // namespace megatron
