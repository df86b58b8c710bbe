#include "megatron/config/resolve/inactive_slots.h"

#include <algorithm>
#include <charconv>

#include "megatron/base/error.h"

namespace megatron {
namespace {

std::vector<int64_t> numbers(std::string_view text, char between, const std::string& entry) {
  std::vector<int64_t> list;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(between, at), text.size());
    int64_t value = 0;
    const auto [last, error] = std::from_chars(text.data() + at, text.data() + end, value);
    if (error != std::errc() || last != text.data() + end || value < 0 || value > 1 << 20)
      throw ConfigError(fmt::format(
          "inactive slots: '{}' is neither DP:SLOT,SLOT nor DP.CP.PP:SLOT,SLOT, such as 1:2,5", entry));
    list.push_back(value);
    at = end + 1;
  }
  return list;
}

}  // namespace

bool has_inactive_slots(const ParallelConfig& parallel) {
  return parallel.tp_spares > 0 || !parallel.non_active_ranks_per_dp.empty();
}

std::vector<InactiveSlotsEntry> parse_inactive_slots(const std::vector<std::string>& entries) {
  std::vector<InactiveSlotsEntry> list;
  for (const std::string& entry : entries) {
    const size_t colon = entry.find(':');
    const std::string_view text = entry;
    const std::vector<int64_t> place = numbers(text.substr(0, colon), '.', entry);
    if (colon == std::string::npos || (place.size() != 1 && place.size() != 3)) numbers("", '.', entry);
    InactiveSlotsEntry slots{.dp = place[0], .slots = numbers(text.substr(colon + 1), ',', entry)};
    if (place.size() == 3) {
      slots.cp = place[1];
      slots.pp = place[2];
    }
    list.push_back(std::move(slots));
  }
  return list;
}

std::vector<InactiveSlotsEntry> inactive_slots(const ParallelConfig& parallel) {
  std::vector<InactiveSlotsEntry> list = parse_inactive_slots(parallel.non_active_ranks_per_dp);
  const int64_t tp = parallel.tensor_model_parallel_size;
  if (parallel.tp_spares == 0) return list;
  if (list.empty())
    for (int64_t replica = 0; replica < parallel.num_reduced_tp_dp_ranks; ++replica) {
      InactiveSlotsEntry entry;
      entry.dp = replica;
      for (int64_t slot = tp - parallel.tp_spares; slot < tp; ++slot) entry.slots.push_back(slot);
      list.push_back(std::move(entry));
    }
  const auto spares = static_cast<size_t>(parallel.tp_spares);
  for (InactiveSlotsEntry& entry : list) {
    for (int64_t slot = tp - 1; slot >= 0 && entry.slots.size() < spares; --slot)
      if (std::find(entry.slots.begin(), entry.slots.end(), slot) == entry.slots.end())
        entry.slots.push_back(slot);
    std::sort(entry.slots.begin(), entry.slots.end());
  }
  return list;
}

}  // namespace megatron
