#include "megatron/bridge/megatron/common_state.h"

#include "megatron/bridge/megatron/args.h"
#include "megatron/config/config.h"

namespace megatron {
namespace {

int64_t count_of(const Json* value) {
  const bool sound = value && value->is_number() && value->as_double() >= 0 && value->as_double() < 9e18;
  return sound ? static_cast<int64_t>(value->as_double()) : 0;
}

// Adam's steps: one tensor for all parameters, or a number of each group.
std::optional<int64_t> optimizer_steps(const PickleValue& optimizer, const TorchArchive& archive) {
  if (const PickleValue* state = optimizer.find("state"))
    if (const PickleValue* step = state->find("common_step")) {
      if (step->is(PickleKind::integer)) return step->integer;
      const Tensor value = step->is(PickleKind::tensor) ? archive.tensor(*step, "common_step") : Tensor();
      if (value && value.numel() == 1 && value.dtype() == DType::F32)
        return static_cast<int64_t>(*value.data<float>());
    }
  const PickleValue* inner = optimizer.find("optimizer");
  const PickleValue* groups = (inner ? *inner : optimizer).find("param_groups");
  if (groups && !groups->items.empty())
    if (const PickleValue* step = groups->items[0]->find("step"))
      return step->is(PickleKind::real) ? static_cast<int64_t>(step->real) : step->integer;
  return {};
}

Json groups_of(const PickleValue& optimizer, const std::string& origin) {
  const PickleValue* inner = optimizer.find("optimizer");
  const PickleValue* groups = (inner ? *inner : optimizer).find("param_groups");
  return groups ? to_json(*groups, origin) : Json();
}

}  // namespace

void take_common_state(const PickleValue& common, const TorchArchive& archive,
                       MegatronCheckpoint& checkpoint) {
  const std::string& origin = archive.origin();
  const auto note = [&](const std::string& text) { checkpoint.notes.push_back(text); };
  Json kept = Json::object();
  for (std::string_view name : {"iteration", "checkpoint_version", "num_floating_point_operations_so_far",
                                "opt_param_scheduler", "content_metadata"})
    if (const PickleValue* value = common.find(name)) kept[name] = to_json(*value, origin);
  checkpoint.state.iteration = checkpoint.state.optimizer_steps = count_of(kept.find("iteration"));
  if (const Json* scheduler = kept.find("opt_param_scheduler"); scheduler && scheduler->is_object())
    checkpoint.state.schedule = *scheduler;
  if (const PickleValue* optimizer = common.find("optimizer")) {
    kept["param_groups"] = groups_of(*optimizer, origin);
    if (const std::optional<int64_t> steps = optimizer_steps(*optimizer, archive)) {
      kept["optimizer_steps"] = *steps;
      checkpoint.state.optimizer_steps = *steps;
    }
  }
  if (common.find("rng_state") || common.find("rng_tracker_states"))
    note("states of random number generators are left out: ours are counters");
  if (common.find("rerun_state_machine")) note("the rerun state machine's state is left out");
  Config config;
  if (const PickleValue* args = common.find("args")) {
    const Json arguments = to_json(*args, origin);
    checkpoint.model = model_from_args(arguments, origin, note);
    checkpoint.state.consumed_samples = count_of(arguments.find("consumed_train_samples"));
    checkpoint.state.consumed_valid_samples = count_of(arguments.find("consumed_valid_samples"));
    if (const Json* seed = arguments.find("seed"))
      checkpoint.state.seed = static_cast<uint64_t>(count_of(seed));
    kept["args"] = arguments;
    config.model = *checkpoint.model;
  } else {
    // The scheduler counts samples.
    if (const Json* scheduler = kept.find("opt_param_scheduler"); scheduler && scheduler->is_object())
      checkpoint.state.consumed_samples = count_of(scheduler->find("num_steps"));
    note("it keeps no arguments: give the model's flags to whatever loads the result");
  }
  checkpoint.state.config = config.to_json();
  checkpoint.state.extra = Json::object();
  checkpoint.state.extra["megatron_lm"] = std::move(kept);
}

}  // namespace megatron
