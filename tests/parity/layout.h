#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "megatron/comm/run_ranks.h"
#include "megatron/training/rank_trainer.h"

// Trains a configuration under a layout, ranks as threads, and puts the pieces of all ranks together, so that
// layouts can be compared tensor by tensor.
namespace megatron::testing {

struct Whole {  // a global tensor put together
  Shape shape;
  std::vector<double> values;
  std::vector<bool> filled;
};

struct Trained {
  std::vector<double> losses, grad_norms;
  std::map<std::string, Whole> gradients, parameters;  // of the last step
};

inline void put(std::map<std::string, Whole>& all, const Parameter& parameter,
                const std::vector<double>& local) {
  const ShardSpec& shard = parameter.shard;
  Whole& whole = all[parameter.name];
  if (whole.values.empty()) {
    whole.shape = shard.global_shape;
    whole.values.resize(static_cast<size_t>(shard.global_shape.numel()));
    whole.filled.resize(whole.values.size());
  }
  Shape global = shard.global_shape.row_major_strides(), own = shard.local_shape.row_major_strides();
  for (const ShardBlock& block : shard.blocks) {
    for (int64_t i = 0; i < block.extent.numel(); ++i) {
      int64_t rest = i, at = 0, from = 0;
      for (int d = block.extent.rank() - 1; d >= 0; --d) {
        int64_t index = rest % block.extent[d];
        rest /= block.extent[d];
        at += (block.global_offset[d] + index) * global[d];
        from += (block.local_offset[d] + index) * own[d];
      }
      whole.values[static_cast<size_t>(at)] = local[static_cast<size_t>(from)];
      whole.filled[static_cast<size_t>(at)] = true;
    }
  }
}

inline std::vector<double> as_double(RankContext& ctx, const Tensor& tensor) {
  Tensor wide = ctx.empty(tensor.shape(), DType::F64);
  ctx.kernels->copy(ctx.kernel_context(), {tensor, wide});
  return ctx.to_vector<double>(wide);
}

// Lets a test come between a rank and its world: to leave out a collective, say.
using Interpose = std::function<ProcessGroup(const ProcessGroup& world)>;

// `batches`: one global batch per step, [global batch, length + 1].
inline Trained train(const Config& config, const ParallelSizes& sizes,
                     const std::vector<std::vector<int64_t>>& batches, DType dtype = DType::F64,
                     const Interpose& interpose = {}, Device device = kCpu) {
  Trained result;
  std::mutex mutex;
  run_ranks(sizes.world, [&](int, const ProcessGroup& plain) {
    ProcessGroup world = interpose ? interpose(plain) : plain;
    RankContext ctx(device, 1, world.rank());
    ParallelContext parallel = ParallelContext::from_sizes(world, sizes);
    RankTrainer trainer(ctx, config, parallel, dtype);
    int dp = parallel.size(Axis::dp), dp_rank = parallel.rank(Axis::dp);
    for (const auto& batch : batches) {
      std::span<const int64_t> all = batch;
      StepReport report = trainer.step(ctx, all.subspan(all.size() / dp * dp_rank, all.size() / dp), 1e-2);
      if (world.rank() == 0) {
        result.losses.push_back(report.loss);
        result.grad_norms.push_back(report.grad_norm);
      }
    }
    for (Parameter* parameter : trainer.parameters()) {
      auto gradient = as_double(ctx, parameter->sink.main_grad), value = as_double(ctx, parameter->value);
      std::lock_guard lock(mutex);
      put(result.gradients, *parameter, gradient);
      put(result.parameters, *parameter, value);
    }
  });
  return result;
}

// The largest difference of two sets of tensors, each relative to its tensor's largest value; rows that only
// one side has (vocabulary padding) are left out. `where` names the worst tensor.
inline double difference(const std::map<std::string, Whole>& a, const std::map<std::string, Whole>& b,
                         std::string* where) {
  double worst = a.size() == b.size() ? 0 : 1e30;
  *where = "the sets of parameters differ";
  for (const auto& [name, x] : a) {
    auto found = b.find(name);
    if (found == b.end()) {
      *where = name + " is missing";
      return 1e30;
    }
    const Whole& y = found->second;
    size_t n = x.values.size();
    if (y.values.size() != n) {
      *where = name + " has another shape";
      return 1e30;
    }
    double largest = 1e-300, apart = 0;
    for (size_t i = 0; i < n; ++i) {
      if (!x.filled[i] || !y.filled[i]) apart = 1e30;
      largest = std::max(largest, std::abs(x.values[i]));
      double d = std::abs(x.values[i] - y.values[i]);
      apart = d > apart || std::isnan(d) ? (std::isnan(d) ? 1e30 : d) : apart;
    }
    if (apart / largest > worst) {
      worst = apart / largest;
      *where = name;
    }
  }
  return worst;
}

}  // namespace megatron::testing
