#include "megatron/inference/block_pool.h"

#include "megatron/base/error.h"

namespace megatron {

BlockPool::BlockPool(int64_t blocks, bool keeps_unused)
    : keeps_unused_(keeps_unused), blocks_(static_cast<size_t>(blocks)) {
  for (int64_t block = blocks - 1; block >= 0; --block) free_.push_back(block);
}

std::optional<int64_t> BlockPool::allocate() {
  int64_t block = 0;
  if (!free_.empty()) {
    block = free_.back();
    free_.pop_back();
  } else if (!unused_.empty()) {
    block = unused_.front();
    unused_.pop_front();
    forget(block);
  } else {
    return std::nullopt;
  }
  at(block).references = 1;
  return block;
}

void BlockPool::share(int64_t block) {
  Block& shared = at(block);
  if (shared.references++ == 0) unused_.erase(shared.place);
}

void BlockPool::release(int64_t block) {
  Block& released = at(block);
  require(released.references > 0, "block pool: block {} was released once too often", block);
  if (--released.references > 0) return;
  if (released.serial != 0 && keeps_unused_) {
    released.place = unused_.insert(unused_.end(), block);
    return;
  }
  if (released.serial != 0) forget(block);
  free_.push_back(block);
}

void BlockPool::forget_unused() {
  for (int64_t block : unused_) {
    forget(block);
    free_.push_back(block);
  }
  unused_.clear();
}

void BlockPool::forget(int64_t block) {
  prefixes_.erase(at(block).key);
  at(block).serial = 0;
}

std::optional<BlockPool::Prefix> BlockPool::find(uint64_t parent, std::span<const int64_t> tokens) const {
  const auto found = prefixes_.find({parent, {tokens.begin(), tokens.end()}});
  if (found == prefixes_.end()) return std::nullopt;
  return Prefix{found->second, at(found->second).serial};
}

uint64_t BlockPool::publish(int64_t block, uint64_t parent, std::span<const int64_t> tokens) {
  Block& own = at(block);
  require(own.serial == 0 && own.references > 0, "block pool: block {} holds a prefix already", block);
  const auto [place, fresh] = prefixes_.try_emplace({parent, {tokens.begin(), tokens.end()}}, block);
  if (!fresh) return at(place->second).serial;
  own.key = place;
  return own.serial = ++last_serial_;
}

}  // namespace megatron
