#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <span>
#include <vector>

namespace megatron {

// Which blocks of a paged cache are free, and which hold a prefix that another sequence may begin with. A
// block has as many references as sequences use it. Prefixes are a chain: the key of a block is its tokens
// and the serial number of the block before it, so two prefixes are never taken for one.
class BlockPool {
 public:
  static constexpr uint64_t kRoot = 0;  // in front of a sequence's first block

  // `keeps_unused`: blocks with a prefix stay until their memory is needed, the longest unused goes first;
  // otherwise they are forgotten with their last reference.
  BlockPool(int64_t blocks, bool keeps_unused);

  int64_t total() const { return static_cast<int64_t>(blocks_.size()); }
  int64_t used() const { return total() - available(); }  // by sequences
  int64_t cached() const { return static_cast<int64_t>(unused_.size()); }
  int64_t available() const { return static_cast<int64_t>(free_.size() + unused_.size()); }
  bool unused(int64_t block) const { return at(block).references == 0; }

  // A block with one reference; none where all are in use.
  std::optional<int64_t> allocate();
  void share(int64_t block);
  void release(int64_t block);

  // Blocks that nobody uses hold no prefix any more.
  void forget_unused();

  struct Prefix {
    int64_t block = 0;
    uint64_t serial = 0;
  };
  // The block that holds these tokens behind the prefix `parent`.
  std::optional<Prefix> find(uint64_t parent, std::span<const int64_t> tokens) const;
  // Says what a block holds; returns the serial of the prefix, which may be another block's that was first.
  uint64_t publish(int64_t block, uint64_t parent, std::span<const int64_t> tokens);

 private:
  using Key = std::pair<uint64_t, std::vector<int64_t>>;
  struct Block {
    int64_t references = 0;
    uint64_t serial = 0;  // 0: it holds no prefix
    std::map<Key, int64_t>::iterator key;
    std::list<int64_t>::iterator place;  // among the unused
  };
  Block& at(int64_t block) { return blocks_[static_cast<size_t>(block)]; }
  const Block& at(int64_t block) const { return blocks_[static_cast<size_t>(block)]; }
  void forget(int64_t block);

  bool keeps_unused_;
  uint64_t last_serial_ = kRoot;
  std::vector<Block> blocks_;
  std::vector<int64_t> free_;  // without a prefix
  std::list<int64_t> unused_;  // with one; the longest unused first
  std::map<Key, int64_t> prefixes_;
};

}  // namespace megatron
