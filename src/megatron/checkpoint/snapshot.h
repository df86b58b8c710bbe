#pragma once

#include <memory>
#include <optional>
#include <unordered_map>

#include "megatron/checkpoint/save.h"

namespace megatron {

// Copies of what a rank saves, in host memory that is kept from one save to the next (pinned, for a GPU). A
// GPU's copies run on a stream of their own: the host goes on at once, and the rank's stream only waits where
// the copied tensors are about to change. On the CPU the copies are done when take() returns.
class Snapshot {
 public:
  // After whatever is queued on the rank's stream. The copies of the last one have been released. `order`:
  // the tensors that the next update changes, in the groups and in the order in which it does; they are
  // copied in that order, behind what is in none.
  void take(RankContext& ctx, std::span<const OwnChunk> pieces,
            std::span<const std::vector<Tensor>> order = {});
  // Whether the rank's stream has yet to wait for copies before the tensors may change.
  bool holds_back() const { return !copied_.empty(); }
  // To be called before the tensors change: the rank's stream waits for the copies, the host does not.
  void hold_back(RankContext& ctx);
  void hold_back(RankContext& ctx, size_t group);  // … before those of this group of take()'s order do
  // The copies, once they are complete; waits for them. From any thread.
  std::span<const OwnChunk> copies() const;
  // The memory is free for the next one. By the rank's own thread, after copies().
  void release();

 private:
  struct Transfer {
    Tensor source, copy;  // the source stays until it is copied; undefined where that has been done
    size_t turn = 0;      // 0: before the first group, else 1 + the first group that it has something of
  };
  // The copy of a tensor, the same one where it belongs to several chunks: split masters are parameters too.
  Tensor keep(RankContext& ctx, const Tensor& tensor);

  std::shared_ptr<Allocator> memory_;
  std::optional<Stream> stream_;
  std::vector<Event> copied_;  // a group each, or one; while the rank's stream has not waited for the last
  std::vector<OwnChunk> copies_;
  std::vector<Transfer> transfers_;
  std::unordered_map<const void*, size_t> known_;  // what take() has copied so far, by its address
};

}  // namespace megatron
