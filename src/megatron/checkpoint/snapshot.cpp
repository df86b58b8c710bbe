#include "megatron/checkpoint/snapshot.h"

#include "megatron/checkpoint/host_tensor.h"
#include "megatron/device/host_memory.h"

namespace megatron {

Tensor Snapshot::keep(RankContext& ctx, const Tensor& tensor) {
  const bool contiguous = tensor.is_contiguous();
  if (const auto found = known_.find(tensor.raw()); contiguous && found != known_.end())
    if (const Tensor& other = transfers_[found->second].copy;
        other.numel() == tensor.numel() && other.dtype() == tensor.dtype())
      return other.view(tensor.shape());
  Transfer transfer{{}, Tensor::empty(memory_, tensor.shape(), tensor.dtype())};
  if (tensor.device().is_cpu()) {
    copy_host(tensor, transfer.copy);
  } else {
    transfer.source = tensor.detach();
    if (!contiguous) {
      transfer.source = ctx.empty(tensor.shape(), tensor.dtype(), MemoryTag::Workspace);
      ctx.kernels->copy(ctx.kernel_context(), {tensor.detach(), transfer.source});
    }
  }
  if (contiguous && tensor.numel() > 0) known_.emplace(tensor.raw(), transfers_.size());
  transfers_.push_back(std::move(transfer));
  return transfers_.back().copy;
}

void Snapshot::take(RankContext& ctx, std::span<const OwnChunk> pieces) {
  release();
  if (!memory_) memory_ = make_host_allocator(ctx.runtime);
  for (const OwnChunk& piece : pieces) {
    OwnChunk& copy = copies_.emplace_back(OwnChunk{piece.key, {}});
    if (!piece.packed) {
      copy.tensor = keep(ctx, piece.tensor);
      continue;
    }
    copy.packed.emplace(PackedValues{{}, {}, piece.packed->unpack});
    for (const Tensor& part : piece.packed->parts) copy.packed->parts.push_back(keep(ctx, part));
    if (piece.packed->scale) copy.packed->scale = keep(ctx, piece.packed->scale);
  }
  known_.clear();
  if (ctx.device.is_cpu()) return transfers_.clear();
  if (!stream_) stream_.emplace(ctx.runtime);
  Event ready(ctx.runtime);
  ready.record(ctx.stream);
  ready.wait(*stream_);
  for (const Transfer& transfer : transfers_)
    if (transfer.source && transfer.source.numel() > 0)
      ctx.runtime->copy_to_host_async(transfer.copy.raw(), transfer.source.raw(), transfer.source.bytes(),
                                      stream_->native());
  copied_.emplace(ctx.runtime);
  copied_->record(*stream_);
}

void Snapshot::hold_back(RankContext& ctx) {
  if (!copied_) return;
  copied_->wait(ctx.stream);
  copied_.reset();
  transfers_.clear();  // whatever takes their memory next is queued behind the copies
}

std::span<const OwnChunk> Snapshot::copies() const {
  if (stream_) stream_->synchronize();
  return copies_;
}

void Snapshot::release() {
  copies_.clear();
  transfers_.clear();
  known_.clear();
}

}  // namespace megatron
