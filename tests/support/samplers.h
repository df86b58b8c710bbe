#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/datasets/random/torch_random.h"

// Megatron-LM's samplers, written down: golden values check them, and they check the order in which a run
// reads.
namespace megatron::testing {

// The micro-batches of one data-parallel rank, as sample numbers, in the order of training.
using SamplerBatches = std::vector<std::vector<int64_t>>;

// What all ranks share: of each step every rank takes micro_batch samples.
struct SamplerShape {
  int64_t total = 0, consumed = 0;  // samples there are, and those of earlier steps
  int64_t micro_batch = 1, ranks = 1;
};

inline void check_sampler(const SamplerShape& shape, int64_t rank) {
  require(shape.total > 0 && shape.micro_batch > 0,
          "sampler: {} samples in micro-batches of {}, expected both above 0", shape.total,
          shape.micro_batch);
  require(rank >= 0 && rank < shape.ranks, "sampler: rank {} of {}", rank, shape.ranks);
}

// One micro-batch in global order: step `step` after the consumed samples, rank `rank`. Shorter or empty
// where the data ends.
inline std::vector<int64_t> sequential_batch(const SamplerShape& shape, int64_t rank, int64_t step) {
  const int64_t begin = shape.consumed + (step * shape.ranks + rank) * shape.micro_batch;
  std::vector<int64_t> batch;
  for (int64_t i = begin; i < std::min(begin + shape.micro_batch, shape.total); ++i) batch.push_back(i);
  return batch;
}

// All of them. Without drop_last the rest that fills no step is dealt out the same way.
inline SamplerBatches sequential_batches(const SamplerShape& shape, int64_t rank, bool drop_last) {
  check_sampler(shape, rank);
  require(shape.consumed < shape.total, "sampler: {} of {} samples are consumed; nothing is left",
          shape.consumed, shape.total);
  const int64_t left = shape.total - shape.consumed, step = shape.micro_batch * shape.ranks;
  const int64_t steps = drop_last ? left / step : (left + step - 1) / step;
  SamplerBatches batches;
  for (int64_t i = 0; i < steps; ++i) batches.push_back(sequential_batch(shape, rank, i));
  return batches;
}

// The rest of the epoch that `consumed` lies in, shuffled by its number. With data sharding each rank keeps
// to a part of its own.
inline SamplerBatches cyclic_batches(const SamplerShape& shape, int64_t rank, bool data_sharding) {
  check_sampler(shape, rank);
  const int64_t step = shape.micro_batch * shape.ranks, active = shape.total - shape.total % step;
  require(active > 0, "sampler: {} samples do not fill a step of {}", shape.total, step);
  const int64_t epoch = shape.consumed / active, offset = shape.consumed % active;
  require(offset % step == 0, "sampler: {} consumed samples are no multiple of a step of {}", shape.consumed,
          step);
  std::vector<int64_t> order;
  if (data_sharding) {
    const int64_t bucket = shape.total / step * shape.micro_batch;
    const std::vector<int64_t> shuffled = torch_randperm(bucket, static_cast<uint64_t>(epoch));
    for (int64_t i = offset / shape.ranks; i < bucket; ++i)
      order.push_back(rank * bucket + shuffled[static_cast<size_t>(i)]);
  } else {
    const int64_t whole = shape.total / shape.micro_batch * shape.micro_batch;
    const std::vector<int64_t> shuffled = torch_randperm(whole, static_cast<uint64_t>(epoch));
    for (int64_t i = offset + rank; i < whole; i += shape.ranks)
      order.push_back(shuffled[static_cast<size_t>(i)]);
  }
  SamplerBatches batches;
  const auto size = static_cast<size_t>(shape.micro_batch);
  for (size_t i = 0; i + size <= order.size(); i += size)
    batches.emplace_back(order.begin() + static_cast<int64_t>(i),
                         order.begin() + static_cast<int64_t>(i + size));
  return batches;
}

// One sample a step and rank, all samples once.
inline SamplerBatches full_validation_batches(int64_t total, int64_t rank, int64_t ranks) {
  SamplerBatches batches;
  for (int64_t i = rank; i < total; i += ranks) batches.push_back({i});
  return batches;
}

// Every micro-batch of a global batch as one list, for packing across ranks.
inline SamplerBatches hybrid_batches(const SamplerShape& shape, int64_t rank, int64_t global_batch) {
  check_sampler(shape, rank);
  const int64_t step = shape.micro_batch * shape.ranks;
  require(global_batch > 0 && global_batch % step == 0,
          "sampler: global batch {} is no multiple of micro-batch {} times {} ranks", global_batch,
          shape.micro_batch, shape.ranks);
  SamplerBatches batches;
  for (int64_t begin = shape.consumed; begin + global_batch <= shape.total; begin += global_batch) {
    std::vector<int64_t> batch;
    for (int64_t at = begin + rank * shape.micro_batch; at < begin + global_batch; at += step)
      for (int64_t i = 0; i < shape.micro_batch; ++i) batch.push_back(at + i);
    batches.push_back(std::move(batch));
  }
  return batches;
}

}  // namespace megatron::testing
