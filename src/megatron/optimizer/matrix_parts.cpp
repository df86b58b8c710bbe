#include "megatron/optimizer/matrix_parts.h"

namespace megatron {
namespace {

// Calls visit(whole, own) with the views of each block of a shard in […, global rows, global columns] and in
// this rank's own tensor. Experts are numbered as they are here.
template <class Visit>
void for_each_block(const ShardSpec& shard, const Tensor& whole, const Tensor& own, Visit visit) {
  const int rank = shard.local_shape.rank();
  for (const ShardBlock& block : shard.blocks) {
    Tensor there = whole, here = own;
    for (int dim = 0; dim < rank; ++dim) {
      const int64_t from = block.local_offset[dim], extent = block.extent[dim];
      const int64_t at = rank == 3 && dim == 0 ? from : block.global_offset[dim];
      there = there.slice(dim, at, at + extent);
      here = here.slice(dim, from, from + extent);
    }
    visit(there, here);
  }
}

}  // namespace

int split_dimension(const Parameter& parameter) {
  const Shape &local = parameter.shard.local_shape, &global = parameter.shard.global_shape;
  const int first = local.rank() - 2;
  for (int dim = 0; dim < 2; ++dim)
    if (local[first + dim] != global[first + dim]) return dim;
  return -1;
}

Tensor own_matrix(RankContext& ctx, const ParameterSlice& slice, const ProcessGroup& shard,
                  const Tensor& part) {
  const Shape& shape = slice.parameter->shard.local_shape;
  if (slice.whole()) return part.view(shape);
  Tensor all = ctx.empty({shape.numel()}, part.dtype(), MemoryTag::Workspace);
  std::vector<Message> messages;
  for (const ParameterSlice::Piece& piece : slice.pieces()) {
    const Tensor place = all.slice(0, piece.begin, piece.end);
    if (piece.rank == shard.rank()) {
      ctx.kernels->copy(ctx.kernel_context(), {part, place});
      continue;
    }
    messages.push_back({Message::Direction::Send, part, piece.rank});
    messages.push_back({Message::Direction::Recv, place, piece.rank});
  }
  shard.batch_send_recv(messages).wait();
  return all.view(shape);
}

Tensor whole_matrix(RankContext& ctx, const Parameter& parameter, const ProcessGroup& tensor,
                    const Tensor& own) {
  const ShardSpec& shard = parameter.shard;
  if (tensor.size() == 1 || split_dimension(parameter) < 0) return own;
  Shape shape = shard.global_shape;
  if (shape.rank() == 3) shape[0] = shard.local_shape[0];
  Tensor whole = ctx.zeros(shape, own.dtype(), MemoryTag::Workspace);
  for_each_block(shard, whole, own, [&](const Tensor& there, const Tensor& here) {
    ctx.kernels->copy(ctx.kernel_context(), {here, there});
  });
  tensor.all_reduce(whole).wait();
  return whole;
}

void take_blocks(RankContext& ctx, const Parameter& parameter, const Tensor& whole, const Tensor& own) {
  for_each_block(parameter.shard, whole, own, [&](const Tensor& there, const Tensor& here) {
    ctx.kernels->copy(ctx.kernel_context(), {there, here});
  });
}

Tensor part_of(const ParameterSlice& slice, const Tensor& own) {
  if (slice.whole()) return own.view(slice.value.shape());
  return own.view({own.numel()}).slice(0, slice.begin, slice.begin + slice.value.numel());
}

}  // namespace megatron
