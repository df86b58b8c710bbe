#include "megatron/checkpoint/save_plan.h"

#include <algorithm>
#include <map>

namespace megatron {

namespace {

struct Holder {
  Box box;
  std::vector<int> ranks;  // ascending
};

struct Candidate {
  StoredTensor tensor;
  std::vector<Holder> holders;  // distinct boxes
  int first_rank;

  int64_t bytes() const { return tensor.shape.numel() * static_cast<int64_t>(size_of(tensor.dtype)); }
};

Json to_json(const Shape& shape) { return Json(Json::Array(shape.begin(), shape.end())); }

Shape read_shape(const Json& json) {
  Shape shape;
  for (const Json& size : json.as_array()) shape.push_back(size.as_int());
  return shape;
}

void add_holder(Candidate& candidate, const Box& box, int rank) {
  for (Holder& holder : candidate.holders) {
    if (!(holder.box == box)) continue;
    if (holder.ranks.back() != rank) holder.ranks.push_back(rank);
    return;
  }
  candidate.holders.push_back({box, {rank}});
}

std::map<std::string, Candidate> collect(std::span<const std::vector<ShardDescription>> ranks,
                                         Problems& problems) {
  std::map<std::string, Candidate> candidates;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    for (const ShardDescription& shard : ranks[rank]) {
      const Shape& shape = shard.shard.global_shape;
      auto [found, added] = candidates.try_emplace(shard.name);
      Candidate& candidate = found->second;
      if (added) {
        candidate.tensor = {shard.name, shard.dtype, shape, {}};
        candidate.first_rank = static_cast<int>(rank);
      } else if (candidate.tensor.shape != shape || candidate.tensor.dtype != shard.dtype) {
        problems.add("{}: rank {} has it as {}{}, rank {} as {}{}", shard.name, candidate.first_rank,
                     candidate.tensor.dtype, candidate.tensor.shape, rank, shard.dtype, shape);
        continue;
      }
      for (const ShardBlock& block : shard.shard.blocks)
        if (block.extent.numel() > 0)
          add_holder(candidate, {block.global_offset, block.extent}, static_cast<int>(rank));
    }
  }
  return candidates;
}

// Boxes are given out one by one; where they overlap without being equal (replicas of different layouts), a
// later one has only what is not written yet.
void assign(Candidate& candidate, std::vector<int64_t>& load) {
  std::stable_sort(candidate.holders.begin(), candidate.holders.end(),
                   [](const Holder& a, const Holder& b) { return a.box.volume() > b.box.volume(); });
  std::vector<Box> written;
  for (const Holder& holder : candidate.holders) {
    std::vector<Box> parts = {holder.box};
    for (const Box& box : written) {
      std::vector<Box> rest;
      for (const Box& part : parts) {
        std::vector<Box> left = subtract(part, box);
        rest.insert(rest.end(), left.begin(), left.end());
      }
      parts = std::move(rest);
    }
    if (parts.empty()) continue;
    const int writer = *std::min_element(holder.ranks.begin(), holder.ranks.end(),
                                         [&](int a, int b) { return load[a] < load[b]; });
    for (const Box& part : parts) {
      candidate.tensor.pieces.push_back({writer, part});
      load[writer] += part.volume() * static_cast<int64_t>(size_of(candidate.tensor.dtype));
    }
    written.push_back(holder.box);
  }
  std::sort(candidate.tensor.pieces.begin(), candidate.tensor.pieces.end(),
            [](const StoredChunk& a, const StoredChunk& b) {
              return std::lexicographical_compare(a.box.offset.begin(), a.box.offset.end(),
                                                  b.box.offset.begin(), b.box.offset.end());
            });
}

}  // namespace

std::vector<ShardDescription> describe(std::span<const ShardedTensor> tensors) {
  std::vector<ShardDescription> shards;
  for (const ShardedTensor& tensor : tensors) {
    check_shard(tensor.shard, tensor.name);
    require(tensor.tensor.defined() && tensor.tensor.shape() == tensor.shard.local_shape,
            "{}: its tensor is {}, its shard {}", tensor.name, tensor.tensor, tensor.shard.local_shape);
    shards.push_back({tensor.name, tensor.tensor.dtype(), tensor.shard});
  }
  return shards;
}

std::string to_text(std::span<const ShardDescription> shards) {
  Json::Array list;
  for (const ShardDescription& shard : shards) {
    Json::Array blocks;
    for (const ShardBlock& block : shard.shard.blocks)
      blocks.push_back(
          Json::Array{to_json(block.global_offset), to_json(block.local_offset), to_json(block.extent)});
    list.push_back(Json::Array{shard.name, name_of(shard.dtype), to_json(shard.shard.global_shape),
                               to_json(shard.shard.local_shape), std::move(blocks)});
  }
  return Json(std::move(list)).dump();
}

std::vector<ShardDescription> shards_from_text(const std::string& text) {
  std::vector<ShardDescription> shards;
  const Json list = Json::parse(text, "description of shards");
  for (const Json& item : list.as_array()) {
    ShardDescription shard{item[0].as_string(),
                           dtype_from_name(item[1].as_string()),
                           {read_shape(item[2]), read_shape(item[3]), {}}};
    for (const Json& block : item[4].as_array())
      shard.shard.blocks.push_back({read_shape(block[0]), read_shape(block[1]), read_shape(block[2])});
    shards.push_back(std::move(shard));
  }
  return shards;
}

std::vector<StoredTensor> plan_save(std::span<const std::vector<ShardDescription>> ranks) {
  Problems problems;
  std::map<std::string, Candidate> candidates = collect(ranks, problems);
  problems.raise("checkpoint: the ranks disagree about what to save");

  // What one rank alone holds is given out first, then the large before the small: so the rest can level the
  // load.
  std::vector<Candidate*> order;
  for (auto& [name, candidate] : candidates) order.push_back(&candidate);
  const auto choices = [](const Candidate* candidate) {
    size_t most = 0;
    for (const Holder& holder : candidate->holders) most = std::max(most, holder.ranks.size());
    return most;
  };
  std::stable_sort(order.begin(), order.end(), [&](const Candidate* a, const Candidate* b) {
    return std::pair(choices(a), -a->bytes()) < std::pair(choices(b), -b->bytes());
  });
  std::vector<int64_t> load(ranks.size(), 0);
  for (Candidate* candidate : order) assign(*candidate, load);

  std::vector<StoredTensor> tensors;
  for (auto& [name, candidate] : candidates) {
    check_pieces(candidate.tensor, problems);
    tensors.push_back(std::move(candidate.tensor));
  }
  problems.raise("checkpoint: parts of the model are on no rank");
  return tensors;
}

}  // namespace megatron
