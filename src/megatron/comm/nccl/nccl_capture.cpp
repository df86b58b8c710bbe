#include "megatron/comm/nccl/nccl_capture.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "megatron/base/hash.h"
#include "megatron/comm/processes/frame.h"

namespace megatron {

NcclCapture::NcclCapture(std::shared_ptr<NcclWatchdog> watchdog, ProcessGroup world,
                         std::shared_ptr<GroupBackend> world_backend, std::shared_ptr<RankQueue> queue,
                         CallSite where)
    : watchdog_(std::move(watchdog)),
      world_(std::move(world)),
      backend_(std::move(world_backend)),
      queue_(std::move(queue)),
      where_(where) {
  require(!watchdog_->capture, "capture at {}: another one is under way", describe(where));
  watchdog_->require_running();
  watchdog_->hold_capture();
  watchdog_->capture = this;
}

NcclCapture::~NcclCapture() {
  if (watchdog_->capture == this) watchdog_->capture = nullptr;
  watchdog_->drop_capture();
}

void NcclCapture::add(const GroupBackend& group, std::span<const CommRequest> requests) {
  auto own = std::find_if(groups_.begin(), groups_.end(), [&](const OwnGroup& known) {
    return known.name == group.name() && known.ranks == group.world_ranks();
  });
  if (own == groups_.end()) {
    OwnGroup fresh{
        .sum = {.key = hash_text(group.name())}, .name = group.name(), .ranks = group.world_ranks()};
    for (int rank : fresh.ranks) fresh.sum.key = mix(fresh.sum.key, static_cast<uint64_t>(rank));
    own = groups_.insert(own, std::move(fresh));
  }
  for (const CommRequest& request : requests) {
    if (!is_message(request.kind)) {
      ++own->sum.collectives;
      own->sum.signature = mix(own->sum.signature, signature_of(request));
      continue;
    }
    const bool sent = request.kind == CommKind::Send;
    const std::pair<int, int> way =
        sent ? std::pair(group.rank(), request.peer) : std::pair(request.peer, group.rank());
    uint64_t message = mix(signature_of(request), ++own->so_far[sent][way]);
    message = mix(mix(message, static_cast<uint64_t>(way.first)), static_cast<uint64_t>(way.second));
    own->sum.messages += sent ? message : uint64_t{0} - message;
  }
}

void NcclCapture::end() {
  watchdog_->capture = nullptr;
  require(groups_.size() <= kGroups,
          "capture at {}: {} groups have operations, at most {} can be compared; leave --cuda-graph-impl out",
          describe(where_), groups_.size(), kGroups);
  std::vector<Group> own(kGroups), all(kGroups * static_cast<size_t>(world_.size()));
  std::transform(groups_.begin(), groups_.end(), own.begin(),
                 [](const OwnGroup& group) { return group.sum; });
  const auto bytes = [](std::vector<Group>& groups) {
    return Tensor::wrap(groups.data(), {static_cast<int64_t>(groups.size() * sizeof(Group))}, DType::U8);
  };
  world_.all_gather(bytes(own), bytes(all), where_).wait();
  for (const OwnGroup& group : groups_)
    if (const std::string text = difference(group, all); !text.empty()) throw CommError(text);
}

// How other ranks' part of the group differs from this rank's; "" where it does not.
std::string NcclCapture::difference(const OwnGroup& own, std::span<const Group> all) const {
  const std::vector<int>& world = backend_->world_ranks();
  const auto of_rank = [&](int rank) {
    const auto place = static_cast<size_t>(std::find(world.begin(), world.end(), rank) - world.begin());
    const std::span<const Group> groups = all.subspan(place * kGroups, kGroups);
    const auto found = std::find_if(groups.begin(), groups.end(),
                                    [&](const Group& group) { return group.key == own.sum.key; });
    return found == groups.end() ? Group{} : *found;
  };
  const std::string group = fmt::format("comm mismatch in a captured step on group {} (ranks {}): ", own.name,
                                        fmt::join(own.ranks, " "));
  const int self = world[static_cast<size_t>(backend_->rank())];
  uint64_t messages = 0;
  for (int rank : own.ranks) {
    const Group other = of_rank(rank);
    messages += other.messages;
    if (other.collectives != own.sum.collectives)
      return group + fmt::format("rank {} captured {} collectives, but rank {} captured {}", rank,
                                 other.collectives, self, own.sum.collectives);
    if (other.signature != own.sum.signature)
      return group + fmt::format("ranks {} and {} captured {} collectives each, but not the same ones", rank,
                                 self, own.sum.collectives);
  }
  return messages == 0 ? "" : group + "some message is sent that no rank receives, or the other way round";
}

void NcclCapture::replay(const std::function<void()>& run) {
  watchdog_->require_running();
  const CommRequest request{.kind = CommKind::Replay, .where = where_};
  auto op = std::make_shared<NcclOp>(backend_, queue_->runtime, replays_++, request);
  op->entry = backend_->note_begin(op->sequence, request);
  watchdog_->add(op);
  watchdog_->unless_stopped([&] {
    run();
    op->finished.record(*queue_->stream);
    op->queued = true;
  });
}

}  // namespace megatron
