#include "megatron/checkpoint/snapshot.h"

#include <algorithm>

#include "megatron/checkpoint/host_tensor.h"
#include "megatron/device/host_memory.h"

namespace megatron {
namespace {

// Which group has something of a tensor's memory. Tensors of groups are the same, or do not overlap.
class GroupsByAddress {
 public:
  explicit GroupsByAddress(std::span<const std::vector<Tensor>> groups) {
    for (size_t group = 0; group < groups.size(); ++group)
      for (const Tensor& tensor : groups[group])
        if (tensor.numel() > 0) ranges_.push_back({begin_of(tensor), end_of(tensor), group + 1});
    std::ranges::sort(ranges_, {}, &Range::begin);
  }

  // 0 where no group has; else 1 + the first that does.
  size_t turn_of(const Tensor& tensor) const {
    if (!tensor || tensor.numel() == 0) return 0;
    size_t turn = 0;
    for (auto at = std::ranges::upper_bound(ranges_, begin_of(tensor), {}, &Range::end);
         at != ranges_.end() && at->begin < end_of(tensor); ++at)
      turn = turn == 0 ? at->turn : std::min(turn, at->turn);
    return turn;
  }

 private:
  struct Range {
    const std::byte *begin, *end;
    size_t turn;
  };
  static const std::byte* begin_of(const Tensor& tensor) {
    return static_cast<const std::byte*>(tensor.raw());
  }
  static const std::byte* end_of(const Tensor& tensor) {
    int64_t last = 0;
    for (int dim = 0; dim < tensor.rank(); ++dim) last += (tensor.shape()[dim] - 1) * tensor.stride(dim);
    return begin_of(tensor) + static_cast<size_t>(last + 1) * size_of(tensor.dtype());
  }

  std::vector<Range> ranges_;  // by address
};

}  // namespace

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

void Snapshot::take(RankContext& ctx, std::span<const OwnChunk> pieces,
                    std::span<const std::vector<Tensor>> order) {
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
  const GroupsByAddress groups(order);
  for (Transfer& transfer : transfers_) transfer.turn = groups.turn_of(transfer.source);
  std::ranges::stable_sort(transfers_, {}, &Transfer::turn);
  copied_.clear();
  auto next = transfers_.begin();
  for (size_t turn = 1; turn <= std::max<size_t>(order.size(), 1); ++turn) {
    for (; next != transfers_.end() && next->turn <= turn; ++next)
      if (next->source && next->source.numel() > 0)
        ctx.runtime->copy_to_host_async(next->copy.raw(), next->source.raw(), next->source.bytes(),
                                        stream_->native());
    copied_.emplace_back(ctx.runtime).record(*stream_);
  }
}

void Snapshot::hold_back(RankContext& ctx) {
  if (copied_.empty()) return;
  copied_.back().wait(ctx.stream);
  copied_.clear();
  transfers_.clear();  // whatever takes their memory next is queued behind the copies
}

void Snapshot::hold_back(RankContext& ctx, size_t group) {
  if (group < copied_.size()) copied_[group].wait(ctx.stream);
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
