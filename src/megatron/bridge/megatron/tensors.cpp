#include "megatron/bridge/megatron/tensors.h"

#include <algorithm>

#include "megatron/base/problems.h"
#include "megatron/checkpoint/host_copy.h"
#include "megatron/checkpoint/host_tensor.h"

namespace megatron {
namespace {

constexpr int64_t kMaxLayers = 1 << 14;

// One key of the files, of those that make up one of our tensors, or one for each layer.
struct Member {
  MegatronKey key;
  const DistTensor* tensor;

  Shape shape() const {  // without the axis of layers, with one of experts
    Shape shape;
    if (key.expert) shape.push_back(1);
    for (int d = key.stacked ? 1 : 0; d < tensor->shape.rank(); ++d) shape.push_back(tensor->shape[d]);
    return shape;
  }
};

std::string our_key(const MegatronKey& key) {
  const std::string state = key.state.empty() ? "" : "optimizer." + key.state + ".";
  return state + key.before + (key.stacked ? "*" : "") + key.after;
}

std::string with_layer(const MegatronKey& key, int64_t layer) {
  const std::string state = key.state.empty() ? "" : "optimizer." + key.state + ".";
  return state + key.name(layer);
}

// The members of one of our tensors and where each begins.
struct Layout {
  Shape shape;
  std::vector<Shape> offsets;  // of the members
};

// Members are sorted by expert, then part. Experts follow each other in the first dimension, parts in the
// rows.
Layout lay_out(const std::vector<Member>& members, const std::string& name, Problems& problems) {
  const int rows = name.find("mlp.experts.experts.") != std::string::npos ? 1 : 0;
  Layout layout;
  layout.shape = members[0].shape();
  int64_t experts = 0, next = 0;
  for (size_t i = 0; i < members.size(); ++i) {
    const MegatronKey& key = members[i].key;
    const Shape shape = members[i].shape();
    const bool new_expert = i > 0 && key.expert != members[i - 1].key.expert;
    if (new_expert) next = 0;
    const bool misfit = shape.rank() != layout.shape.rank() || shape.rank() <= rows ||
                        members[i].tensor->dtype != members[0].tensor->dtype ||
                        (i > 0 && !new_expert && key.part == members[i - 1].key.part);
    if (misfit) {
      problems.add("{}: {} does not go with {}", name, members[i].tensor->key, members[0].tensor->key);
      return layout;
    }
    Shape offset = shape;
    for (int d = 0; d < shape.rank(); ++d) offset[d] = 0;
    offset[rows] = next;
    if (key.expert) offset[0] = *key.expert, experts = std::max(experts, *key.expert + 1);
    layout.offsets.push_back(offset);
    next += shape[rows];
    layout.shape[rows] = std::max(layout.shape[rows], next);
  }
  if (members[0].key.expert) layout.shape[0] = experts;
  return layout;
}

// Whether the members, which do not overlap, are all of it.
bool covers(const std::vector<Member>& members, const Shape& shape) {
  if (members[0].key.expert && shape[0] > static_cast<int64_t>(members.size())) return false;
  int64_t elements = 0;
  for (const Member& member : members) elements += member.shape().numel();
  return elements == shape.numel() && elements > 0;
}

// A chunk's part of layer `layer`, as a view of the file with the dimensions that our tensor has.
Tensor read_chunk(const DistCheckpoint& checkpoint, const DistTensor& tensor, const DistChunk& chunk,
                  const MegatronKey& key, int64_t layer) {
  Tensor value = checkpoint.chunk(tensor, chunk);
  if (key.stacked) value = value.select(0, layer - chunk.box.offset[0]);
  if (!key.expert) return value;
  Shape shape{1};
  for (int64_t size : value.shape()) shape.push_back(size);
  return value.view(shape);
}

void add_pieces(const DistCheckpoint& checkpoint, const Member& member, const Shape& offset, int64_t layer,
                MegatronTensor& ours) {
  for (const DistChunk& chunk : member.tensor->chunks) {
    const Box& box = chunk.box;
    const bool stacked = member.key.stacked;
    if (stacked && (layer < box.offset[0] || layer >= box.offset[0] + box.extent[0])) continue;
    Box place;
    if (member.key.expert) place.offset.push_back(offset[0]), place.extent.push_back(1);
    for (int d = stacked ? 1 : 0; d < box.offset.rank(); ++d) {
      place.offset.push_back(box.offset[d] + offset[place.offset.rank()]);
      place.extent.push_back(box.extent[d]);
    }
    ours.pieces.push_back({box_shard(ours.shape, place), [&checkpoint, &chunk, member, layer] {
                             return read_chunk(checkpoint, *member.tensor, chunk, member.key, layer);
                           }});
  }
}

}  // namespace

void MegatronTensor::read(RankContext& ctx, const ShardSpec& shard, const Tensor& target) const {
  std::vector<ShardSpec> sources;
  for (const MegatronPiece& piece : pieces) sources.push_back(piece.shard);
  const TransferPlan plan = plan_transfers(sources, {&shard, 1});
  if (!plan.missing.empty())
    throw ConfigError(fmt::format("{}: the checkpoint has no {}", name, plan.missing[0].second));
  for (const Transfer& transfer : plan.transfers)
    copy_from_host(ctx,
                   box_of(pieces[static_cast<size_t>(transfer.source)].read(),
                          {transfer.source_offset, transfer.extent}),
                   box_of(target, {transfer.target_offset, transfer.extent}));
}

std::vector<MegatronTensor> dist_tensors(const DistCheckpoint& checkpoint,
                                         const std::function<void(std::string_view key)>& left_out) {
  std::map<std::string, std::vector<Member>> groups;
  for (const DistTensor& tensor : checkpoint.metadata().tensors) {
    const std::optional<MegatronKey> key = megatron_key(tensor.key);
    if (!key || tensor.key.find("._extra_state") != std::string::npos)
      left_out(tensor.key);
    else
      groups[our_key(*key)].push_back({*key, &tensor});
  }
  Problems problems;
  std::vector<MegatronTensor> tensors;
  for (auto& [name, members] : groups) {
    std::ranges::sort(members, {},
                      [](const Member& m) { return std::pair(m.key.expert.value_or(-1), m.key.part); });
    const bool stacked = members[0].key.stacked;
    if (stacked && std::ranges::any_of(members, [&](const Member& m) {
          return m.tensor->shape.rank() < 1 || m.tensor->shape[0] != members[0].tensor->shape[0];
        })) {
      problems.add("{}: its parts have different numbers of layers", name);
      continue;
    }
    const Layout layout = lay_out(members, name, problems);
    if (layout.offsets.size() != members.size()) continue;
    const int64_t layers = stacked ? members[0].tensor->shape[0] : 1;
    if (layers > kMaxLayers || !covers(members, layout.shape)) {
      problems.add("{}: {} layers of {}, of which the checkpoint holds a part", name, layers, layout.shape);
      continue;
    }
    for (int64_t layer = 0; layer < layers; ++layer) {
      MegatronTensor ours{with_layer(members[0].key, layer), members[0].tensor->dtype, layout.shape, {}};
      for (size_t i = 0; i < members.size(); ++i)
        add_pieces(checkpoint, members[i], layout.offsets[i], layer, ours);
      tensors.push_back(std::move(ours));
    }
  }
  problems.raise(fmt::format("{}: tensors that do not fit together", checkpoint.directory()));
  std::ranges::sort(tensors, {}, &MegatronTensor::name);
  return tensors;
}

}  // namespace megatron
