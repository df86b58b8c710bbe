#include "megatron/training/parity.h"

#include <cmath>
#include <mutex>

#include "megatron/comm/run_ranks.h"
#include "megatron/models/parallel_setup.h"
#include "megatron/training/step/rank_trainer.h"

namespace megatron {
namespace {

constexpr double kInfinitelyFar = 1e30;

std::vector<double> as_double(RankContext& ctx, const Tensor& tensor, const Tensor& factor) {
  Tensor wide = ctx.empty(tensor.shape(), DType::F64);
  ctx.kernels->copy(ctx.kernel_context(), {tensor, wide});
  if (factor)
    ctx.kernels->binary(ctx.kernel_context(), {Binary::Mul, wide, factor.expand(wide.shape()), wide});
  return ctx.to_vector<double>(wide);
}

void collect(RankContext& ctx, RankTrainer& trainer, WholeTensors& gradients, WholeTensors& parameters,
             std::mutex& mutex) {
  auto add = [&](WholeTensors& all, const ParameterSlice& slice, const Tensor& tensor,
                 const Tensor& factor = {}) {
    auto values = as_double(ctx, tensor, factor);
    std::lock_guard lock(mutex);
    put_together(all, *slice.parameter, values, slice.begin);
  };
  for (const ParameterSlice& slice : trainer.slices()) {
    add(gradients, slice, slice.gradient, trainer.gradient_factor());
    add(parameters, slice, slice.value);
  }
  // Where replicas differ in size, what ranks compute with may not be what is updated.
  const bool all = trainer.parallel().unequal() != nullptr;
  for (Parameter* parameter : trainer.parameters())
    if (all || !parameter->trainable) add(parameters, {parameter}, parameter->value);
}

// Whatever rank tells of a step. Norms of parameters are sums in one order on all.
bool same_verdict(const StepReport& a, const StepReport& b) {
  return a.update == b.update && a.loss_scale == b.loss_scale && a.num_zeros == b.num_zeros &&
         a.params_norm == b.params_norm;
}

}  // namespace

void put_together(WholeTensors& all, const Parameter& parameter, const std::vector<double>& local,
                  int64_t begin) {
  const ShardSpec& shard = parameter.shard;
  WholeTensor& whole = all[parameter.name];
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
      from -= begin;
      if (from < 0 || from >= static_cast<int64_t>(local.size())) continue;
      double &value = whole.values[static_cast<size_t>(at)], own_value = local[static_cast<size_t>(from)];
      if (whole.filled[static_cast<size_t>(at)])
        whole.copies_apart = std::max(whole.copies_apart, std::abs(value - own_value));
      value = own_value;
      whole.filled[static_cast<size_t>(at)] = true;
    }
  }
}

TrainedLayout train_layout(const Config& config, const ParityRun& run,
                           const std::vector<std::vector<int64_t>>& batches) {
  TrainedLayout result;
  if (run.keep_history) result.history.resize(batches.size());
  std::mutex mutex;
  std::vector<double> evaluated;
  // All ranks say the same of a step.
  auto agree = [&](size_t step, double value, std::vector<double>& known) {
    std::lock_guard lock(mutex);
    if (known.size() <= step) known.push_back(value);
    if (!std::isfinite(value) && !std::isfinite(known[step])) return;  // an overflow that all ranks saw
    const double apart = std::abs(value - known[step]) / std::max(std::abs(value), 1e-300);
    result.ranks_apart = std::max(result.ranks_apart, std::isnan(apart) ? kInfinitelyFar : apart);
  };
  ParallelSizes sizes = run.sizes;
  sizes.embedding_stages = embedding_stages(config);
  const RankFunction rank = [&](int, const ProcessGroup& plain) {
    ProcessGroup everyone = run.interpose ? run.interpose(plain) : plain;
    RankContext ctx(run.device, 1, everyone.rank());
    plain.attach(ctx);
    everyone.attach(ctx);
    const ProcessGroup world = active_world(everyone, sizes);
    if (!world) return;  // it idles
    ParallelContext parallel = ParallelContext::from_sizes(world, sizes);
    RankTrainer trainer(ctx, config, parallel, run.dtype, {.teacher = run.teacher});
    constexpr uint64_t kTeacherSeed = 4321;
    if (trainer.teacher()) trainer.teacher()->initialize(ctx, kTeacherSeed);
    int dp = parallel.replicas(), dp_rank = parallel.replica();
    RankTrainer::Documents documents = run.documents;
    documents = documents.subspan(documents.size() / dp * dp_rank, documents.size() / dp);
    const Shares shares = batch_shares(config, parallel, config.train.global_batch_size);
    const std::vector<Share>& own = shares.of_replica[static_cast<size_t>(dp_rank)];
    const auto from_source = [&](size_t step) {
      const int64_t batch = config.train.global_batch_size, iteration = static_cast<int64_t>(step);
      return run.source->step({iteration, iteration * batch, own});
    };
    // Replicas of different sizes have different numbers of micro-batches.
    const auto unequal_batches = [&](size_t step) {
      const std::span<const int64_t> all = batches[step];
      const int64_t row = config.model.seq_length + 1, first = own.front().first;
      return batches_of_tokens(
          all.subspan(static_cast<size_t>(first * row),
                      static_cast<size_t>((own.back().first + own.back().count - first) * row)),
          config.train.micro_batch_size, config.model.seq_length, {}, {}, first);
    };
    const bool unequal = parallel.unequal() && !run.source;
    for (size_t step = 0; step < batches.size(); ++step) {
      std::span<const int64_t> all = batches[step];
      StepReport report =
          run.source ? trainer.step(ctx, from_source(step), run.lr)
          : unequal  ? trainer.update(ctx,
                                      trainer.gradients(
                                          ctx, unequal_batches(step),
                                          {.iteration = trainer.steps_taken(), .batches = shares.batches()}),
                                      run.lr)
                     : trainer.step(ctx, all.subspan(all.size() / dp * dp_rank, all.size() / dp), run.lr,
                                    run.lengths, documents);
      agree(step, report.loss, result.losses);
      agree(step, report.grad_norm, result.grad_norms);
      {
        std::lock_guard lock(mutex);
        if (result.reports.size() <= step) result.reports.push_back(report);
        if (!same_verdict(result.reports[step], report)) result.ranks_apart = kInfinitelyFar;
      }
      if (run.keep_history)
        collect(ctx, trainer, result.history[step].gradients, result.history[step].parameters, mutex);
    }
    collect(ctx, trainer, result.gradients, result.parameters, mutex);
    std::span<const int64_t> first = batches[0];
    double loss = run.source ? trainer.evaluate(ctx, from_source(0))
                  : unequal
                      ? trainer.evaluate(ctx, unequal_batches(0), shares.batches())
                      : trainer.evaluate(ctx, first.subspan(first.size() / dp * dp_rank, first.size() / dp),
                                         run.lengths, documents);
    agree(0, loss, evaluated);
  };
  run.launch ? run.launch(rank) : run_ranks(run.sizes.world, rank);
  result.evaluated = evaluated.empty() ? 0 : evaluated[0];
  return result;
}

std::vector<std::vector<int64_t>> random_batches(const Config& config, int steps,
                                                 const std::vector<int64_t>& lengths) {
  std::vector<std::vector<int64_t>> batches(static_cast<size_t>(steps));
  int64_t n = lengths.empty() ? config.train.global_batch_size * (config.model.seq_length + 1) : 0;
  for (int64_t length : lengths) n += config.train.micro_batch_size * (length + 1);
  for (int step = 0; step < steps; ++step)
    for (int64_t i = 0; i < n; ++i)
      batches[static_cast<size_t>(step)].push_back(
          Philox::at({7, static_cast<uint64_t>(step)}, static_cast<uint64_t>(i)).word[0] %
          config.model.vocab_size);
  return batches;
}

double tensor_difference(const WholeTensor& a, const WholeTensor& b) {
  if (a.values.size() != b.values.size()) return kInfinitelyFar;
  double largest = 1e-300, apart = std::max(a.copies_apart, b.copies_apart);
  for (size_t i = 0; i < a.values.size(); ++i) {
    double distance = std::abs(a.values[i] - b.values[i]);
    if (!a.filled[i] || !b.filled[i] || std::isnan(distance)) return kInfinitelyFar;
    largest = std::max(largest, std::abs(a.values[i]));
    apart = std::max(apart, distance);
  }
  return apart / largest;
}

TensorDifference largest_difference(const WholeTensors& a, const WholeTensors& b) {
  TensorDifference result;
  if (a.size() != b.size()) result = {kInfinitelyFar, "the sets of parameters differ"};
  for (const auto& [name, tensor] : a) {
    auto other = b.find(name);
    if (other == b.end()) return {kInfinitelyFar, name + " is missing"};
    if (other->second.values.size() != tensor.values.size())
      return {kInfinitelyFar, name + " has another shape"};
    double distance = tensor_difference(tensor, other->second);
    if (distance > result.worst) result = {distance, name};
  }
  return result;
}

}  // namespace megatron
