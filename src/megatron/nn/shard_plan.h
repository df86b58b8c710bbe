#pragma once

#include <optional>
#include <span>
#include <vector>

#include "megatron/nn/shard_spec.h"

namespace megatron {

// A part of a tensor: from `offset`, `extent` in each dimension.
struct Box {
  Shape offset, extent;

  int64_t volume() const { return extent.numel(); }
  bool contains(const Box& other) const;
  std::string str() const;  // "[0:4, 2:8]"
  friend bool operator==(const Box&, const Box&) = default;
};

Box whole_box(const Shape& shape);
std::optional<Box> intersect(const Box& a, const Box& b);  // none where nothing is in both
std::vector<Box> subtract(const Box& a, const Box& b);     // what of a is not in b, without overlaps
Shape shifted(const Shape& place, const Shape& from, const Shape& to);  // place − from + to

// A rank that holds one box, and nothing else, in memory of its size.
ShardSpec box_shard(const Shape& global_shape, const Box& box);
// A box of what a shard holds, on its own.
ShardSpec shard_within(const ShardSpec& shard, const Box& local);

// An Error where a block leaves the global or the local shape, or two of them share a place.
void check_shard(const ShardSpec& spec, std::string_view name);

// One copy: a box at one place of a source's memory goes to another in a target's.
struct Transfer {
  int source, target;
  Shape source_offset, target_offset, extent;
};

struct TransferPlan {
  std::vector<Transfer> transfers;
  std::vector<std::pair<int, Box>> missing;  // (target, global box) that no source holds
};

// How the targets get what they hold from the sources: every element once. One planner for checkpoints of any
// layout, Hugging Face files, live refit and nonuniform tensor parallelism. Where several sources hold an
// element, target i prefers source i (its own memory, where both are lists of ranks), then i + 1, and so
// around, which spreads the reading.
TransferPlan plan_transfers(std::span<const ShardSpec> sources, std::span<const ShardSpec> targets);

}  // namespace megatron

template <>
struct fmt::formatter<megatron::Box> {
  constexpr auto parse(fmt::format_parse_context& ctx) { return ctx.begin(); }
  auto format(const megatron::Box& box, fmt::format_context& ctx) const {
    return fmt::format_to(ctx.out(), "{}", box.str());
  }
};
