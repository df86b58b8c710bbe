#include "megatron/training/run/memory_snapshot.h"

#include <set>

#include "megatron/checkpoint/host_tensor.h"
#include "megatron/comm/string_collectives.h"

namespace megatron {

void MemorySnapshot::keep(RankContext& ctx, std::span<const ShardedTensor> tensors,
                          const TrainingState& state, std::span<const std::vector<Tensor>> order) {
  Copy& copy = copies_[next_];
  copy.iteration = -1;
  copy.replicas.clear();
  std::vector<OwnChunk> pieces;
  for (const ShardedTensor& tensor : tensors) pieces.push_back({tensor.name, tensor.tensor, tensor.packed});
  copy.memory.take(ctx, pieces, order);
  copy.shards = describe(tensors);
  copy.state = state;
  copy.iteration = state.iteration;
  next_ = 1 - next_;
}

void MemorySnapshot::replicate(const ProcessGroup& world, const ReplicaPlaces& places) {
  Copy& copy = copies_[1 - next_];
  std::vector<Tensor> sent;
  for (const OwnChunk& chunk : copy.memory.copies()) sent.push_back(host_values(chunk));
  for (ReceivedReplica& replica :
       exchange_replicas(world, places, to_text(copy.shards), sent, [](const std::string& text) {
         std::vector<Tensor> targets;
         for (const ShardDescription& shard : shards_from_text(text))
           targets.push_back(host_tensor(shard.shard.local_shape, shard.dtype));
         return targets;
       })) {
    HeldState& held = copy.replicas.emplace_back(HeldState{shards_from_text(replica.text), {}, copy.state});
    for (size_t i = 0; i < held.shards.size(); ++i)
      held.chunks.push_back({held.shards[i].name, replica.tensors[i]});
  }
}

bool MemorySnapshot::holds_back() const {
  return copies_[0].memory.holds_back() || copies_[1].memory.holds_back();
}

void MemorySnapshot::before_change(RankContext& ctx, std::optional<size_t> group) {
  for (Copy& copy : copies_) group ? copy.memory.hold_back(ctx, *group) : copy.memory.hold_back(ctx);
}

int64_t MemorySnapshot::newest() const { return std::max(copies_[0].iteration, copies_[1].iteration); }

void MemorySnapshot::forget_all_but(int64_t iteration) {
  for (size_t i = 0; i < copies_.size(); ++i)
    if (copies_[i].iteration != iteration) {
      copies_[i].iteration = -1;
      copies_[i].replicas.clear();
      next_ = i;
    }
}

MemorySnapshot::Copy* MemorySnapshot::find(int64_t iteration) {
  for (Copy& copy : copies_)
    if (copy.iteration == iteration) return &copy;
  return nullptr;
}

std::optional<TensorSource> MemorySnapshot::restore(const ProcessGroup& world,
                                                    std::span<const ShardDescription> wanted) {
  std::set<int64_t, std::greater<>> iterations;
  const std::string own = fmt::format("{} {}", copies_[0].iteration, copies_[1].iteration);
  for (const std::string& text : all_gather_strings(world, own)) {
    const size_t blank = text.find(' ');
    iterations.insert(std::stoll(text.substr(0, blank)));
    iterations.insert(std::stoll(text.substr(blank + 1)));
  }
  for (const int64_t iteration : iterations) {
    if (iteration < 0) break;
    if (std::optional<TensorSource> source = restore(world, iteration, wanted)) return source;
  }
  return {};
}

std::optional<TensorSource> MemorySnapshot::restore(const ProcessGroup& world, int64_t iteration,
                                                    std::span<const ShardDescription> wanted) {
  HeldState own;
  if (Copy* const copy = find(iteration)) {
    own.shards = copy->shards;
    own.state = copy->state;
    const std::span<const OwnChunk> copies = copy->memory.copies();
    own.chunks.assign(copies.begin(), copies.end());
    for (const HeldState& replica : copy->replicas) {
      own.shards.insert(own.shards.end(), replica.shards.begin(), replica.shards.end());
      own.chunks.insert(own.chunks.end(), replica.chunks.begin(), replica.chunks.end());
    }
  }
  return assemble(world, own, wanted, fmt::format("the copy of iteration {} in memory", iteration));
}

}  // namespace megatron
