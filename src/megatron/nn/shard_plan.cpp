#include "megatron/nn/shard_plan.h"

#include <algorithm>

#include "megatron/base/error.h"

namespace megatron {

namespace {

bool inside(const Shape& offset, const Shape& extent, const Shape& shape) {
  if (offset.rank() != shape.rank() || extent.rank() != shape.rank()) return false;
  for (int i = 0; i < shape.rank(); ++i)
    if (offset[i] < 0 || extent[i] < 0 || offset[i] + extent[i] > shape[i]) return false;
  return true;
}

}  // namespace

bool Box::contains(const Box& other) const {
  for (int i = 0; i < offset.rank(); ++i)
    if (other.offset[i] < offset[i] || other.offset[i] + other.extent[i] > offset[i] + extent[i])
      return false;
  return true;
}

std::string Box::str() const {
  std::string text = "[";
  for (int i = 0; i < offset.rank(); ++i)
    text += fmt::format("{}{}:{}", i ? ", " : "", offset[i], offset[i] + extent[i]);
  return text + "]";
}

Box whole_box(const Shape& shape) {
  Shape origin = shape;
  for (int i = 0; i < origin.rank(); ++i) origin[i] = 0;
  return {origin, shape};
}

ShardSpec box_shard(const Shape& global_shape, const Box& box) {
  return {global_shape, box.extent, {{box.offset, whole_box(global_shape).offset, box.extent}}};
}

std::optional<Box> intersect(const Box& a, const Box& b) {
  Box both = a;
  for (int i = 0; i < a.offset.rank(); ++i) {
    int64_t begin = std::max(a.offset[i], b.offset[i]);
    int64_t end = std::min(a.offset[i] + a.extent[i], b.offset[i] + b.extent[i]);
    if (end <= begin) return {};
    both.offset[i] = begin;
    both.extent[i] = end - begin;
  }
  return both;
}

std::vector<Box> subtract(const Box& a, const Box& b) {
  std::optional<Box> both = intersect(a, b);
  if (!both) return a.volume() == 0 ? std::vector<Box>{} : std::vector<Box>{a};
  std::vector<Box> rest;
  Box left = a;  // shrinks, dimension by dimension, to the intersection
  for (int i = 0; i < a.offset.rank(); ++i) {
    int64_t begin = both->offset[i], end = begin + both->extent[i],
            left_end = left.offset[i] + left.extent[i];
    if (left.offset[i] < begin) {
      Box before = left;
      before.extent[i] = begin - left.offset[i];
      rest.push_back(before);
    }
    if (end < left_end) {
      Box after = left;
      after.offset[i] = end;
      after.extent[i] = left_end - end;
      rest.push_back(after);
    }
    left.offset[i] = begin;
    left.extent[i] = end - begin;
  }
  return rest;
}

Shape shifted(const Shape& place, const Shape& from, const Shape& to) {
  Shape result = place;
  for (int i = 0; i < place.rank(); ++i) result[i] += to[i] - from[i];
  return result;
}

void check_shard(const ShardSpec& spec, std::string_view name) {
  require(spec.local_shape.rank() == spec.global_shape.rank(),
          "{}: its shard {} and the whole {} differ in rank", name, spec.local_shape, spec.global_shape);
  for (size_t i = 0; i < spec.blocks.size(); ++i) {
    const ShardBlock& block = spec.blocks[i];
    require(inside(block.global_offset, block.extent, spec.global_shape), "{}: the block {} is outside {}",
            name, Box{block.global_offset, block.extent}, spec.global_shape);
    require(inside(block.local_offset, block.extent, spec.local_shape),
            "{}: the block {} is outside its shard {}", name, Box{block.local_offset, block.extent},
            spec.local_shape);
    for (size_t j = 0; j < i; ++j) {
      const ShardBlock& other = spec.blocks[j];
      require(!intersect({block.global_offset, block.extent}, {other.global_offset, other.extent}) &&
                  !intersect({block.local_offset, block.extent}, {other.local_offset, other.extent}),
              "{}: the blocks {} and {} overlap", name, Box{block.global_offset, block.extent},
              Box{other.global_offset, other.extent});
    }
  }
}

TransferPlan plan_transfers(std::span<const ShardSpec> sources, std::span<const ShardSpec> targets) {
  TransferPlan plan;
  for (size_t t = 0; t < targets.size(); ++t) {
    for (const ShardBlock& wanted : targets[t].blocks) {
      std::vector<Box> open = {{wanted.global_offset, wanted.extent}};
      if (open[0].volume() == 0) open.clear();
      for (size_t k = 0; k < sources.size() && !open.empty(); ++k) {
        const size_t s = (t + k) % sources.size();
        require(sources[s].global_shape == targets[t].global_shape,
                "reshard: a source is part of {}, its target of {}", sources[s].global_shape,
                targets[t].global_shape);
        for (const ShardBlock& held : sources[s].blocks) {
          const Box box{held.global_offset, held.extent};
          std::vector<Box> still_open;
          for (const Box& part : open) {
            std::vector<Box> rest = subtract(part, box);
            still_open.insert(still_open.end(), rest.begin(), rest.end());
            if (std::optional<Box> both = intersect(part, box))
              plan.transfers.push_back({static_cast<int>(s), static_cast<int>(t),
                                        shifted(both->offset, held.global_offset, held.local_offset),
                                        shifted(both->offset, wanted.global_offset, wanted.local_offset),
                                        both->extent});
          }
          open = std::move(still_open);
        }
      }
      for (const Box& part : open) plan.missing.emplace_back(static_cast<int>(t), part);
    }
  }
  return plan;
}

ShardSpec shard_within(const ShardSpec& shard, const Box& local) {
  const Shape start = whole_box(local.extent).offset;
  ShardSpec result{shard.global_shape, local.extent, {}};
  for (const ShardBlock& block : shard.blocks)
    if (const auto common = intersect({block.local_offset, block.extent}, local))
      result.blocks.push_back({shifted(common->offset, block.local_offset, block.global_offset),
                               shifted(common->offset, local.offset, start), common->extent});
  return result;
}

}  // namespace megatron
