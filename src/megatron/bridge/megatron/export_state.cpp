#include "megatron/bridge/megatron/export_state.h"

#include "megatron/bridge/megatron/args.h"
#include "megatron/checkpoint/torch/pickle_writer.h"

namespace megatron {
namespace {

// What an earlier import kept of Megatron-LM's own, if any.
const Json* kept(const TrainingState& state, std::string_view name) {
  const Json* own = state.extra.is_object() ? state.extra.find("megatron_lm") : nullptr;
  return own && own->is_object() ? own->find(name) : nullptr;
}

const Json* setting(const TrainingState& state, std::string_view section, std::string_view key) {
  const Json* part = state.config.is_object() ? state.config.find(section) : nullptr;
  return part && part->is_object() ? part->find(key) : nullptr;
}

Json value_or(const Json* value, Json otherwise) { return value && !value->is_null() ? *value : otherwise; }

Json scheduler_state(const TrainingState& state) {
  if (const Json* scheduler = kept(state, "opt_param_scheduler")) return *scheduler;
  Json result = Json::object();
  const Json decay = value_or(setting(state, "optimizer", "weight_decay"), 0.01);
  const auto own = [&](std::string_view key, const Json& otherwise) {
    return value_or(state.schedule.is_object() ? state.schedule.find(key) : nullptr, otherwise);
  };
  result["max_lr"] = own("max_lr", value_or(setting(state, "optimizer", "lr"), 0.0));
  result["lr_warmup_steps"] = own("lr_warmup_steps", 0);
  result["num_steps"] = state.consumed_samples;
  result["lr_decay_style"] =
      own("lr_decay_style", value_or(setting(state, "scheduler", "lr_decay_style"), "linear"));
  result["lr_decay_steps"] = own("lr_decay_steps", std::max<int64_t>(state.consumed_samples, 1));
  result["min_lr"] = own("min_lr", value_or(setting(state, "optimizer", "min_lr"), 0.0));
  result["start_wd"] = decay;
  result["end_wd"] = decay;
  result["wd_incr_style"] = "constant";
  result["wd_incr_steps"] = 0;
  return result;
}

// One group with weight decay and one without, as Megatron-LM divides parameters.
void write_groups(PickleWriter& pickle, const TrainingState& state) {
  const auto real = [&](std::string_view key, double otherwise) {
    return value_or(setting(state, "optimizer", key), otherwise).as_double();
  };
  pickle.begin_list();
  for (const double decay : {1.0, 0.0}) {
    Json group = Json::object();
    group["is_expert_parallel"] = false;
    group["default_config"] = true;
    group["wd_mult"] = decay;
    group["lr_mult"] = 1.0;
    group["is_decoupled_lr"] = false;
    group["max_lr"] = real("lr", 0);
    group["min_lr"] = real("min_lr", 0);
    group["lr"] = real("lr", 0);
    group["eps"] = real("adam_eps", 1e-8);
    group["weight_decay"] = decay * real("weight_decay", 0.01);
    group["step"] = state.optimizer_steps;
    pickle.begin_dict();
    for (const auto& [key, value] : group.as_object()) {
      pickle.text(key);
      pickle.json(value);
    }
    pickle.text("betas");
    pickle.begin_tuple();
    pickle.real(real("adam_beta1", 0.9));
    pickle.real(real("adam_beta2", 0.999));
    pickle.end_tuple();
    pickle.end_dict();
  }
  pickle.end_list();
}

void write_args(PickleWriter& pickle, const TrainingState& state, const ModelConfig& model) {
  Json args = args_from_model(model);
  args["consumed_train_samples"] = state.consumed_samples;
  args["consumed_valid_samples"] = state.consumed_valid_samples;
  args["skipped_train_samples"] = state.skipped_samples;
  args["iteration"] = state.iteration;
  args["seed"] = static_cast<int64_t>(state.seed);
  args["ckpt_format"] = "torch_dist";
  args["no_save_optim"] = false;
  args["no_save_rng"] = true;
  args["use_distributed_optimizer"] = true;
  for (std::string_view size : {"world_size", "data_parallel_size", "context_parallel_size"}) args[size] = 1;
  pickle.object("argparse", "Namespace");
  pickle.json(args);
  pickle.set_state();
}

}  // namespace

std::string common_state_pickle(const TrainingState& state, const ModelConfig& model, bool with_optimizer) {
  PickleWriter pickle;
  pickle.begin_list();
  pickle.begin_dict();
  pickle.text("args");
  write_args(pickle, state, model);
  pickle.text("checkpoint_version");
  pickle.real(3.0);
  pickle.text("iteration");
  pickle.integer(state.iteration);
  pickle.text("num_floating_point_operations_so_far");
  pickle.json(value_or(kept(state, "num_floating_point_operations_so_far"), 0.0));
  pickle.text("opt_param_scheduler");
  pickle.json(scheduler_state(state));
  pickle.text("content_metadata");
  Json metadata = Json::object();
  metadata["singleton_local_shards"] = false;
  metadata["chained_optim_avoid_prefix"] = true;
  metadata["distrib_optim_sharding_type"] = "fully_reshardable";
  pickle.json(metadata);
  if (with_optimizer) {
    pickle.text("optimizer");
    pickle.begin_dict();
    pickle.text("optimizer");
    pickle.begin_dict();
    pickle.text("param_groups");
    write_groups(pickle, state);
    pickle.end_dict();
    pickle.text("param_state_sharding_type");
    pickle.text("fully_reshardable");
    pickle.end_dict();
  }
  pickle.end_dict();
  pickle.end_list();
  return pickle.finish();
}

}  // namespace megatron
