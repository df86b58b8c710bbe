#include "megatron/checkpoint/snapshot.h"

#include "megatron/checkpoint/host_tensor.h"
#include "megatron/device/host_memory.h"

namespace megatron {

void Snapshot::take(RankContext& ctx, std::span<const OwnChunk> pieces) {
  release();
  if (!memory_) memory_ = make_host_allocator(ctx.runtime);
  for (const OwnChunk& piece : pieces) {
    const Tensor& tensor = piece.tensor;
    copies_.push_back({piece.key, Tensor::empty(memory_, tensor.shape(), tensor.dtype())});
    if (tensor.device().is_cpu()) {
      copy_host(tensor, copies_.back().tensor);
      sources_.emplace_back();
      continue;
    }
    Tensor source = tensor.detach();
    if (!source.is_contiguous()) {
      source = ctx.empty(tensor.shape(), tensor.dtype(), MemoryTag::Workspace);
      ctx.kernels->copy(ctx.kernel_context(), {tensor.detach(), source});
    }
    sources_.push_back(std::move(source));
  }
  if (ctx.device.is_cpu()) return sources_.clear();
  if (!stream_) stream_.emplace(ctx.runtime);
  Event ready(ctx.runtime);
  ready.record(ctx.stream);
  ready.wait(*stream_);
  for (size_t i = 0; i < sources_.size(); ++i)
    if (sources_[i] && sources_[i].numel() > 0)
      ctx.runtime->copy_to_host_async(copies_[i].tensor.raw(), sources_[i].raw(), sources_[i].bytes(),
                                      stream_->native());
  copied_.emplace(ctx.runtime);
  copied_->record(*stream_);
}

void Snapshot::hold_back(RankContext& ctx) {
  if (!copied_) return;
  copied_->wait(ctx.stream);
  copied_.reset();
  sources_.clear();  // whatever takes their memory next is queued behind the copies
}

std::span<const OwnChunk> Snapshot::copies() const {
  if (stream_) stream_->synchronize();
  return copies_;
}

void Snapshot::release() {
  copies_.clear();
  sources_.clear();
}

}  // namespace megatron
