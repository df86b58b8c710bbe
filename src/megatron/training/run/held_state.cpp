#include "megatron/training/run/held_state.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "megatron/checkpoint/host_copy.h"
#include "megatron/checkpoint/host_tensor.h"
#include "megatron/comm/string_collectives.h"

namespace megatron {
namespace {

using Shards = std::vector<ShardDescription>;

// A tensor that this rank has, of its own or received. What is packed is unpacked where somebody asks for its
// values, not where it goes back as it is.
class Piece {
 public:
  Piece(ShardSpec shard, OwnChunk chunk) : shard(std::move(shard)), chunk(std::move(chunk)) {}

  const Tensor& values() {
    if (!values_) values_ = host_values(chunk);
    return values_;
  }

  ShardSpec shard;
  OwnChunk chunk;

 private:
  Tensor values_;
};
using Pieces = std::map<std::string, std::vector<Piece>>;

bool same_place(const ShardSpec& a, const ShardSpec& b) {
  return a.global_shape == b.global_shape && a.local_shape == b.local_shape &&
         std::ranges::equal(a.blocks, b.blocks, [](const ShardBlock& x, const ShardBlock& y) {
           return x.global_offset == y.global_offset && x.local_offset == y.local_offset &&
                  x.extent == y.extent;
         });
}

// Fills a packed tensor from one of the same place and form; false where there is none.
bool copy_packed(RankContext& ctx, const std::vector<Piece>& pieces, const ShardedTensor& part) {
  const PackedValues& target = *part.packed;
  for (const Piece& piece : pieces) {
    if (!piece.chunk.packed || !same_place(piece.shard, part.shard)) continue;
    const PackedValues& kept = *piece.chunk.packed;
    const auto alike = [](const Tensor& a, const Tensor& b) {
      return a.defined() == b.defined() && (!a || (a.dtype() == b.dtype() && a.shape() == b.shape()));
    };
    if (kept.unpack != target.unpack || !std::ranges::equal(kept.parts, target.parts, alike) ||
        !alike(kept.scale, target.scale))
      continue;
    for (size_t i = 0; i < kept.parts.size(); ++i) queue_from_host(ctx, kept.parts[i], target.parts[i]);
    if (kept.scale) queue_from_host(ctx, kept.scale, target.scale);
    return true;
  }
  return false;
}

// A box of a tensor that one rank sends another, out of one of its pieces.
struct Delivery {
  int from, to;
  size_t piece;  // of the sender
  Shape source_offset;
  Box box;  // in the global tensor
  Shape global_shape;
  std::string name;
  DType dtype;

  size_t bytes() const { return static_cast<size_t>(box.volume()) * size_of(dtype); }
};

// What of a rank's wanted shards it does not hold itself.
Shards needs_of(const Shards& held, std::span<const ShardDescription> wanted) {
  std::map<std::string_view, std::vector<ShardSpec>> own;
  for (const ShardDescription& shard : held) own[shard.name].push_back(shard.shard);
  Shards needs;
  for (const ShardDescription& target : wanted)
    for (const auto& [index, box] : plan_transfers(own[target.name], {&target.shard, 1}).missing)
      needs.push_back({target.name, target.dtype, box_shard(target.shard.global_shape, box)});
  return needs;
}

// Who sends what; none where no rank holds something. All ranks come to the same list.
std::optional<std::vector<Delivery>> plan_deliveries(const std::vector<Shards>& held,
                                                     const std::vector<Shards>& needed) {
  struct Place {
    size_t rank, piece;
  };
  std::map<std::string_view, std::vector<Place>> holders;  // by rank
  for (size_t rank = 0; rank < held.size(); ++rank)
    for (size_t piece = 0; piece < held[rank].size(); ++piece)
      holders[held[rank][piece].name].push_back({rank, piece});
  std::vector<Delivery> deliveries;
  for (size_t to = 0; to < held.size(); ++to)
    for (const ShardDescription& need : needed[to]) {
      const ShardBlock& block = need.shard.blocks.front();
      std::vector<Box> left = {{block.global_offset, block.extent}};
      // The next rank is asked first, which spreads the sending.
      const std::vector<Place>& places = holders[need.name];
      const size_t first =
          static_cast<size_t>(std::ranges::upper_bound(places, to, {}, &Place::rank) - places.begin());
      for (size_t i = 0; i < places.size() && !left.empty(); ++i) {
        const Place& from = places[(first + i) % places.size()];
        if (from.rank == to) continue;  // a need is what the rank has not
        const ShardDescription& source = held[from.rank][from.piece];
        std::vector<Box> still;
        for (const Box& box : left) {
          const ShardSpec target = box_shard(need.shard.global_shape, box);
          const TransferPlan plan = plan_transfers({&source.shard, 1}, {&target, 1});
          for (const Transfer& transfer : plan.transfers)
            deliveries.push_back({static_cast<int>(from.rank),
                                  static_cast<int>(to),
                                  from.piece,
                                  transfer.source_offset,
                                  {shifted(transfer.target_offset, target.blocks.front().local_offset,
                                           target.blocks.front().global_offset),
                                   transfer.extent},
                                  need.shard.global_shape,
                                  need.name,
                                  source.dtype});
          for (const auto& [index, rest] : plan.missing) still.push_back(rest);
        }
        left = std::move(still);
      }
      if (!left.empty()) return {};
    }
  return deliveries;
}

std::vector<Shards> gather_shards(const ProcessGroup& world, const Shards& own) {
  std::vector<Shards> all;
  for (const std::string& text : all_gather_strings(world, to_text(own)))
    all.push_back(shards_from_text(text));
  return all;
}

// Sends what the plan says, of `own` pieces; gives what came, in the order of the plan.
std::vector<Tensor> exchange(const ProcessGroup& world, const std::vector<Delivery>& deliveries,
                             std::span<Piece* const> own) {
  const auto ranks = static_cast<size_t>(world.size());
  std::vector<int64_t> send(ranks, 0), receive(ranks, 0);
  for (const Delivery& delivery : deliveries) {
    if (delivery.from == world.rank())
      send[static_cast<size_t>(delivery.to)] += static_cast<int64_t>(delivery.bytes());
    if (delivery.to == world.rank())
      receive[static_cast<size_t>(delivery.from)] += static_cast<int64_t>(delivery.bytes());
  }
  const auto sum = [](const std::vector<int64_t>& counts) {
    int64_t total = 0;
    for (const int64_t count : counts) total += count;
    return total;
  };
  const Tensor out = host_tensor({sum(send)}, DType::U8), in = host_tensor({sum(receive)}, DType::U8);
  // Deliveries are in order of their receivers, so what is packed is in rank order.
  char* at = static_cast<char*>(out.raw());
  for (const Delivery& delivery : deliveries) {
    if (delivery.from != world.rank()) continue;
    const Tensor packed = Tensor::wrap(at, delivery.box.extent, delivery.dtype);
    copy_host(box_of(own[delivery.piece]->values(), {delivery.source_offset, delivery.box.extent}), packed);
    at += delivery.bytes();
  }
  world.all_to_all(out, in, send, receive).wait();
  std::vector<size_t> begin(ranks, 0);
  for (size_t rank = 1; rank < ranks; ++rank)
    begin[rank] = begin[rank - 1] + static_cast<size_t>(receive[rank - 1]);
  std::vector<Tensor> received;
  for (const Delivery& delivery : deliveries) {
    if (delivery.to != world.rank()) continue;
    size_t& from = begin[static_cast<size_t>(delivery.from)];
    received.push_back(host_tensor(delivery.box.extent, delivery.dtype));
    std::memcpy(received.back().raw(), static_cast<const char*>(in.raw()) + from, delivery.bytes());
    from += delivery.bytes();
  }
  return received;
}

}  // namespace

std::optional<TensorSource> assemble(const ProcessGroup& world, const HeldState& own,
                                     std::span<const ShardDescription> wanted, const std::string& name) {
  const std::vector<Shards> held = gather_shards(world, own.shards);
  const auto deliveries = plan_deliveries(held, gather_shards(world, needs_of(own.shards, wanted)));
  if (!deliveries) return {};
  const auto pieces = std::make_shared<Pieces>();
  std::vector<std::pair<std::vector<Piece>*, size_t>> places;
  for (size_t i = 0; i < own.shards.size(); ++i) {
    std::vector<Piece>& of_name = (*pieces)[own.shards[i].name];
    places.emplace_back(&of_name, of_name.size());
    of_name.emplace_back(own.shards[i].shard, own.chunks[i]);
  }
  if (!deliveries->empty()) {
    std::vector<Piece*> held_here;
    for (const auto& [list, at] : places) held_here.push_back(&(*list)[at]);
    const std::vector<Tensor> received = exchange(world, *deliveries, held_here);
    size_t next = 0;
    for (const Delivery& delivery : *deliveries)
      if (delivery.to == world.rank())
        (*pieces)[delivery.name].emplace_back(box_shard(delivery.global_shape, delivery.box),
                                              OwnChunk{delivery.name, received[next++]});
  }
  TensorSource source;
  source.path = name;
  std::map<std::string, StoredTensor> tensors;
  size_t teller = held.size();
  for (size_t rank = held.size(); rank-- > 0;) {
    if (!held[rank].empty()) teller = rank;
    for (const ShardDescription& shard : held[rank])
      tensors.try_emplace(shard.name, StoredTensor{shard.name, shard.dtype, shard.shard.global_shape, {}});
  }
  if (teller == held.size()) return {};  // nobody holds anything
  for (auto& [tensor_name, tensor] : tensors) source.tensors.push_back(std::move(tensor));
  const CheckpointIndex told{.state = own.state, .files = {}, .tensors = {}};
  const std::string text = broadcast_text(world, told.to_json().dump(), static_cast<int>(teller));
  source.state = CheckpointIndex::from_json(Json::parse(text, source.path), source.path).state;
  source.read = [pieces](RankContext& ctx, const ShardedTensor& part) {
    std::vector<Piece>& all = (*pieces)[part.name];
    std::vector<ShardSpec> sources;
    for (const Piece& piece : all) sources.push_back(piece.shard);
    for (const Transfer& transfer : plan_transfers(sources, {&part.shard, 1}).transfers)
      queue_from_host(ctx,
                      box_of(all[static_cast<size_t>(transfer.source)].values(),
                             {transfer.source_offset, transfer.extent}),
                      box_of(part.tensor, {transfer.target_offset, transfer.extent}));
  };
  source.read_packed = [pieces](RankContext& ctx, const ShardedTensor& part) {
    return copy_packed(ctx, (*pieces)[part.name], part);
  };
  return source;
}

}  // namespace megatron
