#pragma once

#include <vector>

#include "megatron/base/float_types.h"
#include "megatron/comm/process_group.h"
#include "unit/comm/wrap.h"

namespace megatron::testing {

// Takes a rank through every collective on many types and sizes and returns all that came out, bit for bit:
// every kind of process group must return the same.
class Exercise {
 public:
  explicit Exercise(const ProcessGroup& world) : world_(world) {}

  std::vector<uint8_t> run() {
    for (int64_t n : {0, 1, 3, 1000, 70001}) {
      reductions<double>(n);
      reductions<float>(n);
      reductions<bf16>(n);
      reductions<fp16>(n);
      reductions<int64_t>(n);
      reductions<int32_t>(n);
      moves(n);
    }
    groups();
    return std::move(bits_);
  }

 private:
  template <class T>
  void keep(const std::vector<T>& values) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(values.data());
    bits_.insert(bits_.end(), bytes, bytes + values.size() * sizeof(T));
  }
  // Sums of these depend on their order.
  template <class T>
  std::vector<T> own(int64_t n, int salt) const {
    std::vector<T> values;
    for (int64_t i = 0; i < n; ++i)
      values.push_back(
          static_cast<T>(static_cast<float>((world_.rank() * 37 + i * 11 + salt) % 101) * 0.37f - 3.f));
    return values;
  }

  template <class T>
  void reductions(int64_t n) {
    for (ReduceOp op : {ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min, ReduceOp::Avg}) {
      if (op == ReduceOp::Avg && !is_floating(dtype_of<T>())) continue;
      std::vector<T> all = own<T>(n, 1), parts = own<T>(n * world_.size(), 2), part(static_cast<size_t>(n));
      Work first = world_.all_reduce(wrap(all), op),
           second = world_.reduce_scatter(wrap(parts), wrap(part), op);
      second.wait();
      first.wait();
      keep(all);
      keep(part);
    }
  }

  void moves(int64_t n) {
    const int size = world_.size(), rank = world_.rank();
    std::vector<float> in = own<float>(n, 3), all(in.size() * static_cast<size_t>(size)), swapped(all.size());
    world_.all_gather(wrap(in), wrap(all)).wait();
    world_.all_to_all(wrap(all), wrap(swapped)).wait();
    keep(all);
    keep(swapped);
    std::vector<int64_t> send, recv;
    int64_t send_rows = 0, recv_rows = 0;
    for (int peer = 0; peer < size; ++peer) {
      send.push_back(rank + 2 * peer);
      recv.push_back(peer + 2 * rank);
      send_rows += send.back();
      recv_rows += recv.back();
    }
    std::vector<int32_t> rows = own<int32_t>(send_rows * 5, 4), got(static_cast<size_t>(recv_rows * 5));
    world_.all_to_all(wrap(rows).view({send_rows, 5}), wrap(got).view({recv_rows, 5}), send, recv).wait();
    keep(got);
    for (int root = 0; root < size; ++root) {
      std::vector<bf16> values = own<bf16>(n, 5 + root);
      world_.broadcast(wrap(values), root).wait();
      keep(values);
    }
    std::vector<float> from(in.size()), again(in.size());
    const int next = (rank + 1) % size, previous = (rank + size - 1) % size;
    world_
        .batch_send_recv(
            {{Message::Direction::Send, wrap(in), next}, {Message::Direction::Recv, wrap(from), previous}})
        .wait();
    Work sent = world_.send(wrap(from), next), received = world_.recv(wrap(again), previous);
    received.wait();
    sent.wait();
    keep(from);
    keep(again);
    world_.barrier();
  }

  void groups() {
    const ProcessGroup half = world_.split(world_.rank() % 2, -world_.rank(), "half");
    std::vector<int32_t> facts = {half.rank(), half.size(), half.world_ranks().front()};
    half.all_reduce(wrap(facts)).wait();
    keep(facts);
    const ProcessGroup some = world_.split(world_.rank() == 0 ? -1 : 3, 0, "some");
    if (!some) return;
    const ProcessGroup pairs = some.split(some.rank() / 2, 0, "pairs");
    std::vector<double> values(10000, 0.1 * world_.rank());
    Work first = some.all_reduce(wrap(values));
    std::vector<int64_t> ranks = {pairs.rank(), pairs.size()};
    pairs.all_reduce(wrap(ranks)).wait();
    first.wait();
    keep(values);
    keep(ranks);
    for (int rank : pairs.world_ranks()) bits_.push_back(static_cast<uint8_t>(rank));
  }

  const ProcessGroup& world_;
  std::vector<uint8_t> bits_;
};

}  // namespace megatron::testing
