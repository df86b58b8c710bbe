#include <algorithm>
#include <compare>
#include <limits>
#include <map>

#include "megatron/checkpoint/block_reader.h"
#include "megatron/checkpoint/host_copy.h"
#include "megatron/checkpoint/host_tensor.h"
#include "megatron/checkpoint/load.h"

namespace megatron {
namespace {

// The elements before a box in the row-major order of `shape`, where the box is one run of them.
std::optional<int64_t> run_of(const Shape& shape, const Box& box) {
  int64_t begin = 0, inner = 1;
  bool whole = true;  // all dimensions behind this one
  for (int dim = shape.rank() - 1; dim >= 0; --dim) {
    if (!whole && box.extent[dim] != 1) return {};
    whole = whole && box.extent[dim] == shape[dim];
    begin += box.offset[dim] * inner;
    inner *= shape[dim];
  }
  return begin;
}

}  // namespace

// The blocks that fill tensors, which are taken in the order of the files, as disks like it. Where checksums
// are compared, all bytes of a chunk are read in their order, whatever part of them is needed.
class LoadBlocks {
 public:
  LoadBlocks(CheckpointReader& reader, RankContext& ctx, std::span<const LoadPart> parts)
      : reader_(reader), ctx_(ctx), parts_(parts), tensors_(parts.size()) {
    for (const StoredFile& file : reader.index_.files) files_.push_back(reader.path_ + "/" + file.name);
    for (const size_t i : in_file_order()) add_part(i);
    for (auto& [chunk, sum] : sums_) sum_up_to(sum, sum.bytes);
  }

  void run() {
    try {
      read_blocks(files_, blocks_, ctx_.stream, ctx_.device.is_cpu() ? nullptr : ctx_.runtime,
                  reader_.only_reader_ ? ReadWay::direct : ReadWay::cached);
    } catch (const UnreadableFile& error) {  // an older checkpoint may do
      throw reader_.damaged(error.what());
    }
    for (const auto& [chunk, sum] : sums_) reader_.verified_.insert(chunk);
  }

 private:
  struct Sum {
    const SafetensorsEntry* entry;
    const StoredChunk* chunk;
    size_t bytes, summed = 0;
    Checksum checksum = {};
  };

  struct Place {
    int file;
    size_t begin, part;
    auto operator<=>(const Place&) const = default;
  };

  // Where the first chunk of a part lies.
  Place place_of(size_t part) const {
    const ShardedTensor& target = parts_[part].target;
    const StoredTensor& stored = *reader_.index_.find(target.name);
    Place place{std::numeric_limits<int>::max(), 0, part};
    for (const StoredChunk& chunk : stored.pieces)
      for (const ShardBlock& block : target.shard.blocks)
        if (intersect(chunk.box, Box{block.global_offset, block.extent}))
          place = std::min(place, Place{chunk.file, reader_.entry(stored, chunk).begin, part});
    return place;
  }

  // Parts that the caller prepares stay where they are: they may share memory.
  std::vector<size_t> in_file_order() const {
    std::vector<Place> places;
    for (size_t i = 0; i < parts_.size(); ++i) places.push_back(place_of(i));
    const auto is_prepared = [&](const Place& place) {
      return parts_[place.part].begin || parts_[place.part].end;
    };
    for (auto run = places.begin(); run != places.end();) {
      const auto end = std::find_if(run, places.end(), is_prepared);
      std::sort(run, end);
      run = std::find_if_not(end, places.end(), is_prepared);
    }
    std::vector<size_t> order;
    for (const Place& place : places) order.push_back(place.part);
    return order;
  }

  void add_part(size_t i) {
    const ShardedTensor& target = parts_[i].target;
    if (target.tensor)
      require(target.tensor.shape() == target.shard.local_shape, "{}: its tensor is {}, its shard {}",
              target.name, target.tensor, target.shard.local_shape);
    const StoredTensor& stored = *reader_.index_.find(target.name);
    std::vector<ShardSpec> sources;
    for (const StoredChunk& piece : stored.pieces) sources.push_back(box_shard(stored.shape, piece.box));
    const TransferPlan plan =
        plan_transfers(sources, {&target.shard, 1});  // nothing is missing: the index was checked
    tensors_[i] = target.tensor;
    if (parts_[i].begin) add_call([this, i] { tensors_[i] = parts_[i].begin(); });
    for (const Transfer& transfer : plan.transfers)
      add_transfer(i, stored, stored.pieces[static_cast<size_t>(transfer.source)], transfer);
    if (parts_[i].begin || parts_[i].end)
      add_call([this, i] {
        if (parts_[i].end) parts_[i].end();
        tensors_[i] = {};
      });
  }

  void add_transfer(size_t i, const StoredTensor& stored, const StoredChunk& chunk,
                    const Transfer& transfer) {
    const SafetensorsEntry& entry = reader_.entry(stored, chunk);
    Sum* const sum = sum_of(chunk, entry);
    const Box from{transfer.source_offset, transfer.extent};
    const auto size = size_of(entry.dtype);
    const bool converted = entry.bytes != static_cast<size_t>(entry.shape.numel()) * size;
    if (converted || !run_of(entry.shape, from)) return add_scattered(i, stored, chunk, sum, transfer);
    for (const Box& box : cut(transfer.extent, static_cast<int64_t>(ReadBlock::kBytes / size))) {
      if (box.volume() == 0) continue;
      const Box source{shifted(box.offset, whole_box(box.extent).offset, from.offset), box.extent},
          target{shifted(box.offset, whole_box(box.extent).offset, transfer.target_offset), box.extent};
      const size_t begin = static_cast<size_t>(*run_of(entry.shape, source)) * size;
      ReadBlock block{.file = static_cast<size_t>(chunk.file),
                      .offset = entry.begin + begin,
                      .bytes = static_cast<size_t>(box.volume()) * size};
      if (const Tensor& tensor = parts_[i].target.tensor;
          tensor && tensor.device().is_cpu() && tensor.dtype() == entry.dtype)
        if (const Tensor view = box_of(tensor, target); view.is_contiguous())
          block.target = static_cast<std::byte*>(view.raw());
      if (!block.target)
        block.use = [this, i, target, dtype = entry.dtype](const std::byte* data) {
          queue_from_host(ctx_, Tensor::wrap(const_cast<std::byte*>(data), target.extent, dtype),
                          box_of(tensors_[i], target));
        };
      add(std::move(block), sum, begin);
    }
  }

  // A box whose rows lie apart, or values of another dtype: from the mapped file, once that is known to be
  // sound.
  void add_scattered(size_t i, const StoredTensor& stored, const StoredChunk& chunk, Sum* sum,
                     const Transfer& transfer) {
    if (sum) sum_up_to(*sum, sum->bytes);
    add_call([this, i, transfer, file = &reader_.file(chunk.file), key = piece_key(stored, chunk.box)] {
      copy_from_host(ctx_, box_of(file->tensor(key), {transfer.source_offset, transfer.extent}),
                     box_of(tensors_[i], {transfer.target_offset, transfer.extent}));
    });
  }

  void add_call(std::function<void()> call) {
    blocks_.push_back({.use = [call = std::move(call)](const std::byte*) { call(); }});
  }

  // Null where the chunk is not to be compared, or has been.
  Sum* sum_of(const StoredChunk& chunk, const SafetensorsEntry& entry) {
    if (!reader_.verify_ || chunk.checksum.empty() || reader_.verified_.contains(&chunk)) return nullptr;
    return &sums_.try_emplace(&chunk, Sum{&entry, &chunk, entry.bytes}).first->second;
  }

  // `begin`: of the block's bytes in those of the chunk.
  void add(ReadBlock block, Sum* sum, size_t begin) {
    if (sum && begin > sum->summed) sum_up_to(*sum, begin);
    const size_t end = begin + block.bytes;
    if (sum && end > sum->summed) {
      block.sum = &sum->checksum;
      block.sum_from = sum->summed - begin;
      sum->summed = end;
      if (end == sum->bytes) block.summed = [this, sum] { compare(*sum); };
    }
    blocks_.push_back(std::move(block));
  }

  void sum_up_to(Sum& sum, size_t end) {
    while (sum.summed < end)
      add({.file = static_cast<size_t>(sum.chunk->file),
           .offset = sum.entry->begin + sum.summed,
           .bytes = std::min(ReadBlock::kBytes, end - sum.summed)},
          &sum, sum.summed);
  }

  void compare(const Sum& sum) const {
    const std::string damage = checksum_damage(sum.entry->name, sum.checksum.hex(), sum.chunk->checksum);
    if (!damage.empty()) throw reader_.damaged(sum.chunk->file, damage);
  }

  CheckpointReader& reader_;
  RankContext& ctx_;
  std::span<const LoadPart> parts_;
  std::vector<Tensor> tensors_;  // while they are filled
  std::vector<std::string> files_;
  std::vector<ReadBlock> blocks_;
  std::map<const StoredChunk*, Sum> sums_;
};

void CheckpointReader::load(RankContext& ctx, std::span<const LoadPart> parts) {
  check_fit(parts);
  LoadBlocks(*this, ctx, parts).run();
}

}  // namespace megatron
