#include "megatron/parallel/refit.h"

#include <algorithm>
#include <map>

#include "megatron/base/json.h"
#include "megatron/comm/string_collectives.h"

namespace megatron {
namespace {

// A box of a global tensor.
struct Box {
  Shape offset, extent;
};

// What one rank holds of a parameter.
struct Held {
  Shape global_shape;
  DType dtype = DType::F32;
  std::vector<Box> boxes;
};
using HeldByName = std::map<std::string, Held>;

Json numbers(const Shape& shape) {
  Json list = Json::array();
  for (int64_t value : shape) list.push_back(value);
  return list;
}

Shape shape_of(const Json& list) {
  Shape shape;
  for (const Json& value : list.as_array()) shape.push_back(value.as_int());
  return shape;
}

Json described(std::span<Parameter* const> parameters) {
  Json all = Json::object();
  for (const Parameter* parameter : parameters) {
    require(!parameter->sharded, "refit: {} is sharded over data-parallel ranks; put it together first",
            parameter->name);
    Json one = Json::object();
    one["shape"] = numbers(parameter->shard.global_shape);
    one["dtype"] = std::string(name_of(parameter->value.dtype()));
    one["boxes"] = Json::array();
    for (const ShardBlock& block : parameter->shard.blocks) {
      one["boxes"].push_back(numbers(block.global_offset));
      one["boxes"].push_back(numbers(block.extent));
    }
    all[parameter->name] = one;  // both copies of a tied weight are alike
  }
  return all;
}

HeldByName held_of(const Json& described) {
  HeldByName held;
  for (const auto& [name, one] : described.as_object()) {
    Held& own = held[name];
    own.global_shape = shape_of(one.at("shape"));
    own.dtype = dtype_from_name(one.at("dtype").as_string());
    const auto& boxes = one.at("boxes").as_array();
    for (size_t i = 0; i + 1 < boxes.size(); i += 2)
      own.boxes.push_back({shape_of(boxes[i]), shape_of(boxes[i + 1])});
  }
  return held;
}

// What two boxes share; empty extents where that is nothing.
std::optional<Box> common(const Box& a, const Box& b) {
  Box both = a;
  for (int d = 0; d < a.offset.rank(); ++d) {
    const int64_t begin = std::max(a.offset[d], b.offset[d]);
    const int64_t end = std::min(a.offset[d] + a.extent[d], b.offset[d] + b.extent[d]);
    if (begin >= end) return {};
    both.offset[d] = begin;
    both.extent[d] = end - begin;
  }
  return both;
}

// What is left of a box without a part of it.
void add_rest(Box box, const Box& part, std::vector<Box>& rest) {
  for (int d = 0; d < box.offset.rank(); ++d) {
    const int64_t end = box.offset[d] + box.extent[d], part_end = part.offset[d] + part.extent[d];
    if (part.offset[d] > box.offset[d]) {
      Box before = box;
      before.extent[d] = part.offset[d] - box.offset[d];
      rest.push_back(before);
    }
    if (part_end < end) {
      Box behind = box;
      behind.offset[d] = part_end;
      behind.extent[d] = end - part_end;
      rest.push_back(behind);
    }
    box.offset[d] = part.offset[d];
    box.extent[d] = part.extent[d];
  }
}

struct Move {
  int from = 0, to = 0;
  Box box;
  DType dtype = DType::F32;  // of the source
};

// The part of a parameter's memory that holds a box, which lies in one of its blocks.
Tensor memory_of(const Parameter& parameter, const Box& box) {
  for (const ShardBlock& block : parameter.shard.blocks) {
    const std::optional<Box> inside = common({block.global_offset, block.extent}, box);
    if (!inside || !(inside->extent == box.extent)) continue;
    Tensor part = parameter.value;
    for (int d = 0; d < box.offset.rank(); ++d) {
      const int64_t begin = block.local_offset[d] + box.offset[d] - block.global_offset[d];
      part = part.slice(d, begin, begin + box.extent[d]);
    }
    return part;
  }
  fail("refit: {} has no memory for {} of {}", parameter.name, box.extent, box.offset);
}

// Who sends what of a parameter to one rank. The ranks are asked in turn, from another one on for each.
void plan_moves(const std::string& name, int to, const Held& wanted, const std::vector<HeldByName>& sources,
                std::vector<Move>& moves) {
  std::vector<Box> missing = wanted.boxes;
  const int ranks = static_cast<int>(sources.size());
  for (int turn = 0; turn < ranks && !missing.empty(); ++turn) {
    const int from = (to + turn) % ranks;
    const auto found = sources[static_cast<size_t>(from)].find(name);
    if (found == sources[static_cast<size_t>(from)].end()) continue;
    if (!(found->second.global_shape == wanted.global_shape))
      throw ConfigError(fmt::format("refit: {} is {} on one side and {} on the other", name,
                                    found->second.global_shape, wanted.global_shape));
    for (const Box& held : found->second.boxes) {
      std::vector<Box> left;
      for (const Box& box : missing) {
        const std::optional<Box> part = common(box, held);
        if (!part) {
          left.push_back(box);
          continue;
        }
        moves.push_back({from, to, *part, found->second.dtype});
        add_rest(box, *part, left);
      }
      missing = std::move(left);
    }
  }
  if (!missing.empty())
    throw ConfigError(
        fmt::format("refit: nobody has {} of {} from {} on", missing[0].extent, name, missing[0].offset));
}

}  // namespace

struct Refit::Plan {
  ProcessGroup world;
  std::map<std::string, std::vector<Parameter*>> from, to;       // copies of a tied weight have one name
  std::vector<std::pair<std::string, std::vector<Move>>> moves;  // by parameter, in one order on all ranks

  void move(RankContext& ctx, const std::string& name, const std::vector<Move>& list);
};

Refit::Refit(const ProcessGroup& world, std::span<Parameter* const> from, std::span<Parameter* const> to)
    : plan_(std::make_unique<Plan>()) {
  plan_->world = world;
  for (Parameter* parameter : from) plan_->from[parameter->name].push_back(parameter);
  for (Parameter* parameter : to) plan_->to[parameter->name].push_back(parameter);
  Json own = Json::object();
  own["from"] = described(from);
  own["to"] = described(to);
  std::vector<HeldByName> sources, targets;
  for (const std::string& text : all_gather_strings(world, own.dump())) {
    const Json all = Json::parse(text, "refit");
    sources.push_back(held_of(all.at("from")));
    targets.push_back(held_of(all.at("to")));
  }
  std::map<std::string, std::vector<Move>> moves;
  for (int rank = 0; rank < world.size(); ++rank)
    for (const auto& [name, wanted] : targets[static_cast<size_t>(rank)])
      plan_moves(name, rank, wanted, sources, moves[name]);
  plan_->moves.assign(moves.begin(), moves.end());
}

Refit::~Refit() = default;

void Refit::Plan::move(RankContext& ctx, const std::string& name, const std::vector<Move>& list) {
  const auto copy = [&](const Tensor& source, const Tensor& target) {
    ctx.kernels->copy(ctx.kernel_context(), {source.detach(), target});
  };
  const auto sources = from.find(name), targets = to.find(name);
  std::vector<Message> messages;
  std::vector<std::pair<Tensor, Box>> arrived;
  for (const Move& move : list) {
    const bool sends = move.from == world.rank(), receives = move.to == world.rank();
    if (!sends && !receives) continue;
    Tensor part = ctx.empty(move.box.extent, move.dtype, MemoryTag::Workspace);
    if (sends) copy(memory_of(*sources->second.front(), move.box), part);
    if (sends && !receives) messages.push_back({Message::Direction::Send, part, move.to});
    if (!sends) messages.push_back({Message::Direction::Recv, part, move.from});
    if (receives) arrived.emplace_back(part, move.box);
  }
  if (!messages.empty()) world.batch_send_recv(messages).wait();
  for (const auto& [part, box] : arrived)
    for (Parameter* parameter : targets->second) copy(part, memory_of(*parameter, box));
}

void Refit::run(RankContext& ctx) {
  for (const auto& [name, list] : plan_->moves) plan_->move(ctx, name, list);
  plan_->world.require_running();
}

}  // namespace megatron
