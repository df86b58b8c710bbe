#include "megatron/checkpoint/tensor_source.h"

#include <algorithm>

#include "megatron/checkpoint/load.h"

namespace megatron {

const StoredTensor* TensorSource::find(std::string_view name) const {
  const auto found = std::ranges::lower_bound(tensors, name, {}, &StoredTensor::name);
  return found != tensors.end() && found->name == name ? &*found : nullptr;
}

void TensorSource::load(RankContext& ctx, std::span<const LoadPart> parts) const {
  if (read_many) return read_many(ctx, parts);
  for (const LoadPart& part : parts) {
    ShardedTensor target = part.target;
    if (part.begin) target.tensor = part.begin();
    read(ctx, target);
    if (part.end) part.end();
  }
}

TensorSource checkpoint_source(const std::string& path, bool verify, bool only_reader) {
  const auto reader = std::make_shared<CheckpointReader>(path, verify);
  reader->set_only_reader(only_reader);
  TensorSource source;
  source.path = reader->path();
  source.state = reader->state();
  source.tensors = reader->index().tensors;
  source.read = [reader](RankContext& ctx, const ShardedTensor& part) { reader->load(ctx, {&part, 1}); };
  source.read_many = [reader](RankContext& ctx, std::span<const LoadPart> parts) {
    reader->load(ctx, parts);
  };
  return source;
}

}  // namespace megatron
