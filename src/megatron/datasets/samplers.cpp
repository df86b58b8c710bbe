#include "megatron/datasets/samplers.h"

#include <algorithm>

#include "megatron/base/error.h"
#include "megatron/datasets/random/torch_random.h"

namespace megatron {
namespace {

void check(const SamplerShape& shape, int64_t rank) {
  require(shape.total > 0 && shape.micro_batch > 0,
          "sampler: {} samples in micro-batches of {}, expected both above 0", shape.total,
          shape.micro_batch);
  require(rank >= 0 && rank < shape.ranks, "sampler: rank {} of {}", rank, shape.ranks);
}

}  // namespace

std::vector<int64_t> sequential_batch(const SamplerShape& shape, int64_t rank, int64_t step) {
  const int64_t begin = shape.consumed + (step * shape.ranks + rank) * shape.micro_batch;
  std::vector<int64_t> batch;
  for (int64_t i = begin; i < std::min(begin + shape.micro_batch, shape.total); ++i) batch.push_back(i);
  return batch;
}

SamplerBatches sequential_batches(const SamplerShape& shape, int64_t rank, bool drop_last) {
  check(shape, rank);
  require(shape.consumed < shape.total, "sampler: {} of {} samples are consumed; nothing is left",
          shape.consumed, shape.total);
  const int64_t left = shape.total - shape.consumed, step = shape.micro_batch * shape.ranks;
  const int64_t steps = drop_last ? left / step : (left + step - 1) / step;
  SamplerBatches batches;
  for (int64_t i = 0; i < steps; ++i) batches.push_back(sequential_batch(shape, rank, i));
  return batches;
}

SamplerBatches cyclic_batches(const SamplerShape& shape, int64_t rank, bool data_sharding) {
  check(shape, rank);
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

SamplerBatches full_validation_batches(int64_t total, int64_t rank, int64_t ranks) {
  SamplerBatches batches;
  for (int64_t i = rank; i < total; i += ranks) batches.push_back({i});
  return batches;
}

SamplerBatches hybrid_batches(const SamplerShape& shape, int64_t rank, int64_t global_batch) {
  check(shape, rank);
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

}  // namespace megatron
