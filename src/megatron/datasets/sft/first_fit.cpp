#include "megatron/datasets/sft/first_fit.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "megatron/base/error.h"

namespace megatron {
namespace {

// The room of bins as a tree of maxima, so that the first bin with enough is found from the root down.
class Rooms {
 public:
  Rooms(size_t bins, int64_t capacity)
      : leaves_(std::bit_ceil(std::max<size_t>(bins, 1))), room_(2 * leaves_, capacity) {}

  // Takes `length` from the first bin that has it; there is one, since empty bins have room for anything.
  size_t place(int64_t length) {
    size_t node = 1;
    while (node < leaves_) node = room_[2 * node] >= length ? 2 * node : 2 * node + 1;
    const size_t bin = node - leaves_;
    room_[node] -= length;
    while (node /= 2) room_[node] = std::max(room_[2 * node], room_[2 * node + 1]);
    return bin;
  }

 private:
  size_t leaves_;
  std::vector<int64_t> room_;
};

std::vector<std::vector<int64_t>> fit(std::span<const int64_t> lengths, int64_t capacity,
                                      const std::vector<int64_t>& order) {
  require(capacity > 0, "packing: bins of {} tokens", capacity);
  Rooms rooms(lengths.size(), capacity);
  std::vector<std::vector<int64_t>> bins;
  for (int64_t i : order) {
    const int64_t length = lengths[static_cast<size_t>(i)];
    if (length > capacity) continue;
    const size_t bin = rooms.place(std::max<int64_t>(length, 0));
    if (bin >= bins.size()) bins.resize(bin + 1);
    bins[bin].push_back(i);
  }
  return bins;
}

}  // namespace

std::vector<std::vector<int64_t>> first_fit(std::span<const int64_t> lengths, int64_t capacity) {
  std::vector<int64_t> order(lengths.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  return fit(lengths, capacity, order);
}

std::vector<std::vector<int64_t>> first_fit_decreasing(std::span<const int64_t> lengths, int64_t capacity) {
  std::vector<int64_t> order(lengths.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return lengths[static_cast<size_t>(a)] > lengths[static_cast<size_t>(b)];
  });
  return fit(lengths, capacity, order);
}

}  // namespace megatron
