#pragma once

#include "megatron/nn/parameter.h"

namespace megatron {

enum class UnitPass : uint8_t { Forward, Backward };

// Parameters that are used together, such as one layer's: what fully sharded data parallelism gathers before
// their use and gives back after it.
struct ParameterUnit {
  std::vector<Parameter*> parameters;
  // Set where the parameters are sharded. Every acquire is followed by a release.
  std::function<void(RankContext&, UnitPass)> acquire;
  std::function<void(RankContext&)> release;
  bool needed_in_backward = true;  // an embedding's gradient does not ask for its table
  int64_t uses = 1;                // in one micro-batch

  explicit ParameterUnit(Module& module) : parameters(module.parameters()) {}
  explicit ParameterUnit(Parameter& parameter) : parameters{&parameter} {}
};

// Runs `body`, which uses the unit's parameters, and has them there again when its backward pass runs.
template <class Body>
auto use_unit(RankContext& ctx, ParameterUnit& unit, Body&& body) {
  if (!unit.acquire) return body();
  unit.acquire(ctx, UnitPass::Forward);
  bool again = ctx.tape && unit.needed_in_backward;
  if (again) ctx.tape->on_backward([&unit](RankContext& rank) { unit.release(rank); });
  auto leave = [&] {
    if (again) ctx.tape->on_backward([&unit](RankContext& rank) { unit.acquire(rank, UnitPass::Backward); });
    unit.release(ctx);
  };
  if constexpr (std::is_void_v<decltype(body())>) {
    body();
    leave();
  } else {
    auto result = body();
    leave();
    return result;
  }
}

}  // namespace megatron
