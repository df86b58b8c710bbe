#include "megatron/parallel/planned_group.h"

#include <algorithm>
#include <numeric>

#include "megatron/parallel/replica_layout.h"

namespace megatron {
namespace {

class Over final : public PendingOp {
 public:
  void wait() override {}
  bool done() override { return true; }
  void withdraw() noexcept override {}
};

class PlannedGroup final : public GroupBackend {
 public:
  PlannedGroup(std::string name, std::vector<int> ranks, int rank, std::shared_ptr<TrafficLog> log,
               std::shared_ptr<const std::vector<GroupRanks>> lists)
      : name_(std::move(name)), ranks_(std::move(ranks)), log_(std::move(log)), lists_(std::move(lists)) {
    rank_ = static_cast<int>(std::find(ranks_.begin(), ranks_.end(), rank) - ranks_.begin());
  }

  int rank() const override { return rank_; }
  const std::vector<int>& world_ranks() const override { return ranks_; }
  const std::string& name() const override { return name_; }

  std::unique_ptr<PendingOp> start(std::span<CommRequest> requests) override {
    for (const CommRequest& request : requests) {
      if (request.kind == CommKind::Recv || request.kind == CommKind::Barrier) continue;  // the sender counts
      TrafficLog::Entry& entry = log_->by_group[{name_, std::string(name_of(request.kind))}];
      ++entry.operations;
      entry.bytes += leaving(request);
      entry.group_size = static_cast<int>(ranks_.size());
    }
    return std::make_unique<Over>();
  }

  // By a rule that tells the members, or the groups of a ParallelContext, by the names that it gives them.
  std::shared_ptr<GroupBackend> split(CommRequest request) override {
    if (request.color < 0) return nullptr;
    const int self = ranks_[static_cast<size_t>(rank_)];
    if (!request.members.empty()) {
      std::vector<int> ranks;
      for (int member : request.members) ranks.push_back(ranks_[static_cast<size_t>(member)]);
      return std::make_shared<PlannedGroup>(request.name, std::move(ranks), self, log_, lists_);
    }
    for (const GroupRanks& list : *lists_) {
      std::string name(axis_name(list.axis));
      if (list.level > 0) name += "." + std::to_string(list.level);
      if (name == request.name && std::find(list.ranks.begin(), list.ranks.end(), self) != list.ranks.end())
        return std::make_shared<PlannedGroup>(name, list.ranks, self, log_, lists_);
    }
    fail("plan: the layout has no group {} of rank {}", request.name, self);
  }

  std::string cannot_capture() const override { return {}; }
  void abort(const std::string& reason) override { fail("plan: {}", reason); }
  std::string flight_record() const override { return ""; }

 private:
  double leaving(const CommRequest& request) const {
    const double others = static_cast<double>(ranks_.size() - 1), share = others / (others + 1);
    const auto bytes = [](const Tensor& tensor) { return static_cast<double>(tensor.bytes()); };
    switch (request.kind) {
      case CommKind::AllReduce:
        return 2 * share * bytes(request.input);
      case CommKind::ReduceScatter:
      case CommKind::AllToAll:
        return share * bytes(request.input);
      case CommKind::AllGather:
        return share * bytes(request.output);
      case CommKind::Broadcast:
      case CommKind::Send:
        return bytes(request.input);
      default:
        return 0;
    }
  }

  std::string name_;
  std::vector<int> ranks_;
  int rank_;
  std::shared_ptr<TrafficLog> log_;
  std::shared_ptr<const std::vector<GroupRanks>> lists_;
};

}  // namespace

ProcessGroup planned_world(const ParallelSizes& sizes, int rank, std::shared_ptr<TrafficLog> log) {
  std::vector<int> everyone(static_cast<size_t>(sizes.world));
  std::iota(everyone.begin(), everyone.end(), sizes.rank_offset);
  if (!sizes.inactive.empty()) everyone = ReplicaLayout(sizes).active();
  auto lists = std::make_shared<const std::vector<GroupRanks>>(parallel_groups(sizes));
  return ProcessGroup(
      std::make_shared<PlannedGroup>("world", std::move(everyone), rank, std::move(log), std::move(lists)));
}

}  // namespace megatron
