#include "megatron/optimizer/chained.h"

namespace megatron {

ChainedOptimizer::ChainedOptimizer(RankContext& ctx, std::vector<std::unique_ptr<Optimizer>> parts)
    : Optimizer(ctx, {}), parts_(std::move(parts)) {}

void ChainedOptimizer::step(RankContext& ctx, const Rates& rates, const Tensor& gradient_scale,
                            const Tensor& gate) {
  for (auto& part : parts_) part->step(ctx, rates, gradient_scale, gate);
  ++steps_;
}

std::vector<OptimizerTensor> ChainedOptimizer::state() const {
  std::vector<OptimizerTensor> all;
  for (const auto& part : parts_)
    for (OptimizerTensor& tensor : part->state()) all.push_back(std::move(tensor));
  return all;
}

ChangeGroups ChainedOptimizer::change_groups() const {
  ChangeGroups all;
  for (const auto& part : parts_)
    for (std::vector<Tensor>& group : part->change_groups()) all.push_back(std::move(group));
  return all;
}

void ChainedOptimizer::step_by_groups(RankContext& ctx, const Rates& rates, const Tensor& gradient_scale,
                                      const Tensor& gate, const std::function<void(size_t group)>& before) {
  size_t first = 0;  // of the part
  for (auto& part : parts_) {
    size_t groups = 0;
    part->step_by_groups(ctx, rates, gradient_scale, gate, [&](size_t group) {
      groups = group + 1;
      before(first + group);
    });
    first += groups;
  }
  ++steps_;
}

void ChainedOptimizer::begin_load(RankContext& ctx) {
  for (auto& part : parts_) part->begin_load(ctx);
}

void ChainedOptimizer::multiply(RankContext& ctx, const Parameter& parameter, const Tensor& factors) {
  for (auto& part : parts_) part->multiply(ctx, parameter, factors);
}

void ChainedOptimizer::read_parameters(RankContext& ctx) {
  for (auto& part : parts_) part->read_parameters(ctx);
}

std::vector<ParameterSlice> ChainedOptimizer::master_slices() const {
  std::vector<ParameterSlice> all;
  for (const auto& part : parts_)
    for (ParameterSlice& slice : part->master_slices()) all.push_back(std::move(slice));
  return all;
}

void ChainedOptimizer::set_steps(int64_t steps) {
  Optimizer::set_steps(steps);
  for (auto& part : parts_) part->set_steps(steps);
}

}  // namespace megatron
