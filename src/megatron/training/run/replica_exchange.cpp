#include "megatron/training/run/replica_exchange.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <set>

#include "megatron/comm/string_collectives.h"

namespace megatron {

std::string host_name() {
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  return name;
}

std::vector<std::vector<int>> replica_holders(int ranks, int64_t factor, int64_t jump) {
  const int64_t block = factor * jump;
  const bool whole_blocks = ranks % block == 0;
  std::vector<std::vector<int>> holders(static_cast<size_t>(ranks));
  for (int64_t rank = 0; rank < ranks; ++rank) {
    std::set<int64_t> domains = {rank / jump};
    for (int64_t copy = 1; copy < factor; ++copy) {
      const int64_t begin = whole_blocks ? rank / block * block : 0, size = whole_blocks ? block : ranks;
      int64_t holder = rank - begin + copy * jump;
      // The next rank of a domain that has no copy yet.
      for (int64_t tried = 0; tried < size; ++tried, ++holder)
        if (domains.insert((begin + holder % size) / jump).second) {
          holders[static_cast<size_t>(rank)].push_back(static_cast<int>(begin + holder % size));
          break;
        }
    }
  }
  return holders;
}

ReplicaPlaces ReplicaPlaces::of(const ProcessGroup& world, int64_t factor, int64_t jump) {
  std::map<std::string, int64_t> hosts;
  for (const std::string& host : all_gather_strings(world, host_name())) ++hosts[host];
  int64_t most = 1;
  for (const auto& [host, ranks] : hosts) most = std::max(most, ranks);
  if (factor > 1 && jump == 0) jump = hosts.size() > 1 ? most : 1;
  ReplicaPlaces places{{}, factor, std::max<int64_t>(jump, 1), static_cast<int>(hosts.size())};
  places.holders = replica_holders(world.size(), places.factor, places.jump);
  return places;
}

bool ReplicaPlaces::has_fewer_copies() const {
  return std::ranges::any_of(
      holders, [&](const std::vector<int>& list) { return static_cast<int64_t>(list.size()) < factor - 1; });
}

std::vector<ReceivedReplica> exchange_replicas(
    const ProcessGroup& world, const ReplicaPlaces& places, const std::string& text,
    std::span<const Tensor> tensors,
    const std::function<std::vector<Tensor>(const std::string& text)>& targets) {
  std::vector<ReceivedReplica> replicas;
  if (places.factor == 1) return replicas;
  const auto ranks = static_cast<size_t>(world.size());
  const std::vector<int>& holders = places.holders[static_cast<size_t>(world.rank())];
  std::vector<std::string> texts(ranks);
  for (const int holder : holders) texts[static_cast<size_t>(holder)] = text;
  const std::vector<std::string> received = all_to_all_strings(world, texts);
  std::vector<Message> messages;
  for (const int holder : holders)
    for (const Tensor& tensor : tensors) messages.push_back({Message::Direction::Send, tensor, holder});
  for (size_t rank = 0; rank < ranks; ++rank) {
    if (received[rank].empty()) continue;
    replicas.push_back({static_cast<int>(rank), received[rank], targets(received[rank])});
    for (const Tensor& tensor : replicas.back().tensors)
      messages.push_back({Message::Direction::Recv, tensor, static_cast<int>(rank)});
  }
  world.batch_send_recv(messages).wait();
  world.require_running();
  return replicas;
}

}  // namespace megatron
