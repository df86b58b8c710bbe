#include "megatron/checkpoint/save_plan.h"

#include <algorithm>
#include <map>

#include "megatron/base/hash.h"

namespace megatron {

namespace {

// A smaller box goes to one rank as it is: cutting it would cost more than it evens out.
constexpr int64_t min_cut_bytes = int64_t{1} << 20;

int planner_of(std::string_view name, int ranks) {
  return static_cast<int>(hash_text(name) % static_cast<uint64_t>(ranks));
}

Json to_json(const Shape& shape) { return Json(Json::Array(shape.begin(), shape.end())); }

Shape read_shape(const Json& json) {
  Shape shape;
  for (const Json& size : json.as_array()) shape.push_back(size.as_int());
  return shape;
}

bool lies_before(const Box& a, const Box& b) {
  return std::lexicographical_compare(a.offset.begin(), a.offset.end(), b.offset.begin(), b.offset.end());
}

// A rank that holds a box, and the number of the shard in what it told.
struct Holder {
  int rank;
  int64_t item;
};

struct HeldBox {
  Box box;
  std::vector<Holder> holders;  // by rank
};

// A tensor as its planner sees it.
struct Candidate {
  DType dtype = DType::F32;
  Shape shape;
  Holder first = {};
  std::vector<HeldBox> boxes = {};           // distinct ones
  std::map<std::string, size_t> known = {};  // their places, by Box::str()
};

std::map<std::string, Candidate> collect(std::span<const std::string> requests, int64_t& shards,
                                         Problems& problems) {
  std::map<std::string, Candidate> candidates;
  for (size_t rank = 0; rank < requests.size(); ++rank) {
    if (requests[rank].empty()) continue;
    int64_t item = -1;
    for (const ShardDescription& shard : shards_from_text(requests[rank])) {
      const Holder holder{static_cast<int>(rank), ++item};
      ++shards;
      const Shape& shape = shard.shard.global_shape;
      auto [found, added] = candidates.try_emplace(shard.name);
      Candidate& candidate = found->second;
      if (added) {
        candidate.dtype = shard.dtype;
        candidate.shape = shape;
        candidate.first = holder;
      } else if (candidate.shape != shape || candidate.dtype != shard.dtype) {
        problems.add("{}: rank {} has it as {}{}, rank {} as {}{}", shard.name, candidate.first.rank,
                     candidate.dtype, candidate.shape, rank, shard.dtype, shape);
        continue;
      }
      for (const ShardBlock& block : shard.shard.blocks) {
        if (block.extent.numel() == 0) continue;
        const Box box{block.global_offset, block.extent};
        const auto [place, is_new] = candidate.known.try_emplace(box.str(), candidate.boxes.size());
        if (is_new) candidate.boxes.push_back({box, {}});
        std::vector<Holder>& holders = candidate.boxes[place->second].holders;
        if (holders.empty() || holders.back().rank != holder.rank) holders.push_back(holder);
      }
    }
  }
  return candidates;
}

// What of a box is in none of those before it. Where boxes overlap without being equal (replicas of different
// layouts), the larger one has the common part.
std::vector<Box> without(const Box& box, std::span<const HeldBox> before) {
  std::vector<Box> parts = {box};
  for (const HeldBox& other : before) {
    if (!intersect(box, other.box)) continue;
    std::vector<Box> rest;
    for (const Box& part : parts) {
      std::vector<Box> left = subtract(part, other.box);
      rest.insert(rest.end(), left.begin(), left.end());
    }
    parts = std::move(rest);
  }
  return parts;
}

// Ranks that hold the same, by a number.
uint64_t group_of(const std::vector<Holder>& holders) {
  std::string text;
  for (const Holder& holder : holders) text += fmt::format("{},", holder.rank);
  return hash_text(text);
}

// Tells every holder of a part which of how many it is.
void answer(const Box& part, const std::vector<Holder>& holders, std::vector<Json::Array>& answers) {
  const std::string group = holders.size() > 1 ? fmt::format("{:016x}", group_of(holders)) : "";
  for (size_t i = 0; i < holders.size(); ++i) {
    Json::Array line{holders[i].item, to_json(part.offset), to_json(part.extent)};
    if (holders.size() > 1) {
      line.emplace_back(holders.size());
      line.emplace_back(i);
      line.emplace_back(group);
    }
    answers[static_cast<size_t>(holders[i].rank)].emplace_back(std::move(line));
  }
}

// Boxes that the same ranks hold, and which of these ranks this one is.
struct Line {
  struct Part {
    const ShardDescription* tensor;
    Box box;
    int64_t begin, bytes;  // in the line
  };
  int64_t ranks = 1, place = 0;
  std::vector<Part> parts = {};
};

// The dimension along which a part is cut: its rows lie together in memory.
int cut_dim(const Shape& extent) {
  int dim = 0;
  while (extent[dim] == 1) ++dim;
  return dim;
}

// The next place at which the line may be cut.
int64_t snapped(const std::vector<Line::Part>& parts, int64_t at) {
  for (const Line::Part& part : parts) {
    if (at >= part.begin + part.bytes) continue;
    const int64_t within = at - part.begin;
    int64_t unit = part.bytes;
    if (part.bytes >= min_cut_bytes) unit /= part.box.extent[cut_dim(part.box.extent)];
    return part.begin + (within + unit / 2) / unit * unit;
  }
  return at;
}

// What of a part lies in [from, to) of the line.
std::optional<Box> cut_part(const Line::Part& part, int64_t from, int64_t to) {
  from = std::max(from - part.begin, int64_t{0});
  to = std::min(to - part.begin, part.bytes);
  if (from >= to) return {};
  Box box = part.box;
  if (from == 0 && to == part.bytes) return box;
  const int dim = cut_dim(box.extent);
  const int64_t row = part.bytes / box.extent[dim];
  box.offset[dim] += from / row;
  box.extent[dim] = (to - from) / row;
  return box;
}

}  // namespace

std::vector<ShardDescription> describe(std::span<const ShardedTensor> tensors) {
  std::vector<ShardDescription> shards;
  for (const ShardedTensor& tensor : tensors) {
    check_shard(tensor.shard, tensor.name);
    const Tensor& values = tensor.packed ? tensor.packed->parts.front() : tensor.tensor;
    require(values.defined() && values.shape() == tensor.shard.local_shape,
            "{}: its tensor is {}, its shard {}", tensor.name, values, tensor.shard.local_shape);
    shards.push_back({tensor.name, tensor.dtype(), tensor.shard});
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

std::vector<std::string> plan_requests(std::span<const ShardDescription> own, int ranks) {
  std::vector<std::vector<ShardDescription>> lists(static_cast<size_t>(ranks));
  for (const ShardDescription& shard : own)
    lists[static_cast<size_t>(planner_of(shard.name, ranks))].push_back(shard);
  std::vector<std::string> texts;
  for (const std::vector<ShardDescription>& list : lists) texts.push_back(list.empty() ? "" : to_text(list));
  return texts;
}

std::vector<std::string> plan_answers(std::span<const std::string> requests, int64_t* shards) {
  Problems problems;
  int64_t told = 0;
  std::map<std::string, Candidate> candidates = collect(requests, told, problems);
  if (shards) *shards = told;
  problems.raise("checkpoint: the ranks disagree about what to save");
  std::vector<Json::Array> answers(requests.size());
  for (auto& [name, candidate] : candidates) {
    std::vector<HeldBox>& boxes = candidate.boxes;
    std::ranges::stable_sort(boxes, std::ranges::greater{}, [](const HeldBox& b) { return b.box.volume(); });
    StoredTensor tensor{name, candidate.dtype, candidate.shape, {}};
    for (size_t i = 0; i < boxes.size(); ++i)
      for (const Box& part : without(boxes[i].box, std::span(boxes).first(i))) {
        answer(part, boxes[i].holders, answers);
        tensor.pieces.push_back({0, part});
      }
    // Without elements it still has a name.
    if (candidate.shape.numel() == 0)
      answers[static_cast<size_t>(candidate.first.rank)].push_back(Json::Array{candidate.first.item});
    std::ranges::sort(tensor.pieces, lies_before, &StoredChunk::box);
    check_pieces(tensor, problems);
  }
  problems.raise("checkpoint: parts of the model are on no rank");
  std::vector<std::string> texts;
  for (Json::Array& lines : answers) texts.push_back(lines.empty() ? "" : Json(std::move(lines)).dump());
  return texts;
}

std::vector<StoredTensor> own_share(int rank, std::span<const ShardDescription> own,
                                    std::span<const std::string> answers) {
  const auto ranks = static_cast<int>(answers.size());
  std::vector<std::vector<const ShardDescription*>> told(
      answers.size());  // by planner, in the order of step 1
  for (const ShardDescription& shard : own)
    told[static_cast<size_t>(planner_of(shard.name, ranks))].push_back(&shard);

  std::map<std::string, StoredTensor> share;
  const auto entry = [&](const ShardDescription& shard) -> StoredTensor& {
    return share.try_emplace(shard.name, StoredTensor{shard.name, shard.dtype, shard.shard.global_shape, {}})
        .first->second;
  };
  std::map<std::string, Line> lines;
  for (size_t planner = 0; planner < answers.size(); ++planner) {
    if (answers[planner].empty()) continue;
    const Json list = Json::parse(answers[planner], "part of a plan");
    for (const Json& item : list.as_array()) {
      const ShardDescription& shard = *told[planner].at(static_cast<size_t>(item[0].as_int()));
      if (item.size() == 1) {
        entry(shard);
        continue;
      }
      const Box box{read_shape(item[1]), read_shape(item[2])};
      if (item.size() == 3) {
        entry(shard).pieces.push_back({rank, box});
        continue;
      }
      Line& line = lines[item[5].as_string()];
      line.ranks = item[3].as_int();
      line.place = item[4].as_int();
      line.parts.push_back({&shard, box, 0, box.volume() * static_cast<int64_t>(size_of(shard.dtype))});
    }
  }
  for (auto& [group, line] : lines) {
    std::ranges::sort(line.parts, [](const Line::Part& a, const Line::Part& b) {
      if (a.tensor->name != b.tensor->name) return a.tensor->name < b.tensor->name;
      return lies_before(a.box, b.box);
    });
    int64_t end = 0;
    for (Line::Part& part : line.parts) {
      part.begin = end;
      end += part.bytes;
    }
    const int64_t from = snapped(line.parts, end * line.place / line.ranks),
                  to = snapped(line.parts, end * (line.place + 1) / line.ranks);
    for (const Line::Part& part : line.parts)
      if (const std::optional<Box> box = cut_part(part, from, to))
        entry(*part.tensor).pieces.push_back({rank, *box});
  }
  std::vector<StoredTensor> tensors;
  for (auto& [name, tensor] : share) {
    std::ranges::sort(tensor.pieces, lies_before, &StoredChunk::box);
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

std::vector<StoredTensor> plan_save(std::span<const std::vector<ShardDescription>> ranks) {
  const size_t count = ranks.size();
  std::vector<std::vector<std::string>> requests(count), answers(count);  // by planner, then by rank
  for (size_t rank = 0; rank < count; ++rank) {
    std::vector<std::string> own = plan_requests(ranks[rank], static_cast<int>(count));
    for (size_t planner = 0; planner < count; ++planner) requests[planner].push_back(std::move(own[planner]));
  }
  for (size_t planner = 0; planner < count; ++planner) answers[planner] = plan_answers(requests[planner]);
  std::map<std::string, StoredTensor> plan;
  for (size_t rank = 0; rank < count; ++rank) {
    std::vector<std::string> own;
    for (const std::vector<std::string>& texts : answers) own.push_back(texts[rank]);
    for (StoredTensor& tensor : own_share(static_cast<int>(rank), ranks[rank], own)) {
      auto [found, added] = plan.try_emplace(tensor.name, tensor);
      if (!added)
        found->second.pieces.insert(found->second.pieces.end(), tensor.pieces.begin(), tensor.pieces.end());
    }
  }
  std::vector<StoredTensor> tensors;
  for (auto& [name, tensor] : plan) {
    std::ranges::sort(tensor.pieces, lies_before, &StoredChunk::box);
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

}  // namespace megatron
