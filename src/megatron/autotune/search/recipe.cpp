#include "megatron/autotune/search/recipe.h"

#include <fmt/core.h>

#include <cmath>

#include "megatron/config/schema/catalog.h"

namespace megatron::autotune {
namespace {

// Layers of one chunk: a stage's layers, dealt out with the larger chunks first.
int64_t chunk_layers(int64_t stage, int64_t chunks, int64_t chunk) {
  return stage / chunks + (chunk < stage % chunks ? 1 : 0);
}

std::vector<int64_t> stage_sizes(const ModelShape& model, const ParallelPlan& plan) {
  const LayerSplit split = layer_split(model, plan);
  std::vector<int64_t> sizes;
  for (int stage = 0; stage + 1 < plan.pp; ++stage)
    sizes.push_back(static_cast<int64_t>(stage >= split.first_larger ? split.larger : split.first));
  sizes.push_back(static_cast<int64_t>(split.last));
  return sizes;
}

bool even(const ModelShape& model, const ParallelPlan& plan) {
  return model.layers % (int64_t{plan.pp} * plan.vpp) == 0 &&
         (plan.last_stage_layers == 0 || plan.last_stage_layers == model.layers / plan.pp);
}

void set_recompute(const ModelShape& model, const ParallelPlan& plan, Json& settings) {
  if (plan.recompute == Recompute::none || plan.recompute == Recompute::half_gemms) return;
  if (plan.recompute == Recompute::full) {
    settings["recompute_granularity"] = "full";
    const bool all = plan.recompute_share >= 1;
    settings["recompute_method"] = all ? "uniform" : "block";
    // A chunk's first layers are recomputed.
    const double layers = std::ceil(static_cast<double>(model.layers) / plan.pp / plan.vpp);
    settings["recompute_num_layers"] =
        all ? int64_t{1} : static_cast<int64_t>(std::ceil(plan.recompute_share * layers));
    return;
  }
  settings["recompute_granularity"] = "selective";
  Json& modules = settings["recompute_modules"] = Json::array();
  if (plan.recompute == Recompute::selective)
    for (const std::string_view name : module_names(plan.modules)) modules.push_back(name);
  else
    modules.push_back(recompute_name(plan.recompute));
}

// Settings that a plan decides.
bool planned(std::string_view name) {
  for (const std::string_view whole : {"model.tp_comm_overlap", "model.tp_spares",
                                       "model.num_reduced_tp_dp_ranks", "model.non_active_ranks_per_dp"})
    if (name == whole) return true;
  // It is of the model, though it has the word.
  if (name.starts_with("model.parallel_residual")) return false;
  for (const std::string_view part :
       {"parallel", "pipeline", "recompute", "model.bf16", "model.fp8", "micro_batch_size", "cp_comm_type",
        "offload", "cuda_graph", "num_distributed_optimizer_instances", "global_batch_size",
        "moe_token_dispatcher_type", "ddp.overlap", "use_distributed_optimizer", "fsdp", "sharding_strategy"})
    if (name.find(part) != std::string_view::npos) return true;
  return name.starts_with("run.");
}

}  // namespace

std::string pipeline_layout_text(const ModelShape& model, const ParallelPlan& plan,
                                 const std::vector<int>& stage_layers) {
  const std::vector<int64_t> sizes = stage_layers.empty()
                                         ? stage_sizes(model, plan)
                                         : std::vector<int64_t>(stage_layers.begin(), stage_layers.end());
  std::string text = "E";
  for (int64_t chunk = 0; chunk < plan.vpp; ++chunk)
    for (int64_t stage = 0; stage < plan.pp; ++stage) {
      if (chunk + stage > 0) text += "|";
      text += fmt::format("t*{}", chunk_layers(sizes[static_cast<size_t>(stage)], plan.vpp, chunk));
    }
  if (model.mtp > 0) text += fmt::format("m*{}", model.mtp);
  return text + "L";
}

Json plan_settings(const ModelShape& model, const ParallelPlan& plan, const std::vector<int>& stage_layers) {
  Json result = Json::object();
  Json& m = result["model"] = Json::object();
  m["tensor_model_parallel_size"] = plan.tp;
  m["pipeline_model_parallel_size"] = plan.pp;
  m["context_parallel_size"] = plan.cp;
  m["sequence_parallel"] = plan.tp > 1;
  if (plan.tp > 1 && plan.tp_overlap) m["tp_comm_overlap"] = true;
  if (plan.cp > 1) m["cp_comm_type"] = Json(Json::Array{Json(exchange_name(plan.cp_exchange))});
  if (plan.schedule != Schedule::one_f_one_b) m["pipeline_schedule"] = schedule_name(plan.schedule);
  if (plan.pp > 1 && plan.schedule != Schedule::zb_v && (!even(model, plan) || !stage_layers.empty()))
    m["pipeline_model_parallel_layout"] = pipeline_layout_text(model, plan, stage_layers);
  else if (plan.vpp > 1)
    m["virtual_pipeline_model_parallel_size"] = plan.vpp;
  if (plan.unequal()) {
    m["tp_spares"] = plan.tp_spares;
    m["num_reduced_tp_dp_ranks"] = plan.reduced_replicas;
  }
  if (model.moe()) {
    m["expert_model_parallel_size"] = plan.ep;
    m["expert_tensor_parallel_size"] = plan.etp;
    if (plan.ep > 1) m["moe_token_dispatcher_type"] = "alltoall";
  }
  m["bf16"] = plan.precision != Precision::fp16;
  if (plan.fp8()) m["fp8"] = "hybrid";
  m["seq_length"] = plan.seq;
  set_recompute(model, plan, m);
  if (plan.offload_share > 0) {
    m["cpu_offloading"] = true;
    m["cpu_offloading_num_layers"] =
        static_cast<int64_t>(std::lround(plan.offload_share * static_cast<double>(model.layers)));
  }
  if (plan.cuda_graphs) {
    m["cuda_graph_impl"] = "full_iteration";
    // Delayed scaling moves on by the host, which a graph does without.
    if (plan.fp8()) m["fp8_recipe"] = "tensorwise";
  }
  Json& train = result["train"] = Json::object();
  train["micro_batch_size"] = plan.mbs;
  train["global_batch_size"] = plan.gbs;
  // Full rows are packed as given.
  if (plan.packed > 0 || plan.useful < 1) result["dataset"]["packing"] = plan.packed > 0 ? "offline" : "none";
  Json& ddp = result["ddp"] = Json::object();
  if (plan.dp() * plan.cp > 1) {
    const int copies = plan.dp() * plan.cp;
    if (plan.shards > 1 || plan.shard_grads) {
      ddp["use_megatron_fsdp"] = true;
      ddp["data_parallel_sharding_strategy"] = plan.shard_grads ? "optim_grads" : "optim_grads_params";
      if (plan.shards > 1 && plan.shards < copies) {
        ddp["use_distributed_optimizer"] = true;
        ddp["num_distributed_optimizer_instances"] = copies / plan.shards;
      }
    } else {
      ddp["use_distributed_optimizer"] = plan.distributed_optimizer;
      ddp["overlap_grad_reduce"] = plan.dp_overlap;
      ddp["overlap_param_gather"] = plan.dp_overlap && plan.distributed_optimizer;
    }
  }
  return result;
}

Json given_settings(const Resolved& resolved) {
  Json result = Json::object();
  const Json values = resolved.config.to_json();
  for (const Catalog::Entry& entry : Catalog::all().entries()) {
    const std::string name = entry.setting->name();
    if (resolved.origins[entry.index].source < Source::hf || planned(name)) continue;
    const size_t dot = name.find('.');
    const Json* section = dot == std::string::npos ? nullptr : values.find(name.substr(0, dot));
    const Json* value = section != nullptr ? section->find(name.substr(dot + 1)) : nullptr;
    if (value != nullptr) result[name.substr(0, dot)][name.substr(dot + 1)] = *value;
  }
  return result;
}

std::string recipe_text(const Json& given, const ModelShape& model, const Candidate& candidate,
                        std::string_view machine) {
  const ParallelPlan& plan = candidate.plan;
  Json settings = given;
  const Json decided = plan_settings(model, plan, candidate.stage_layers);
  for (const auto& [section, entries] : decided.as_object())
    for (const auto& [key, value] : entries.as_object()) settings[section][key] = value;
  std::string text = fmt::format(
      "# {}: {}\n# predicted: {:.0f} ms an iteration (+-{:.0f} %), {:.0f} tokens/s/GPU, {:.1f} GiB a GPU\n",
      machine, plan_text(plan), candidate.prediction.seconds * 1e3, candidate.prediction.uncertainty * 100,
      candidate.prediction.tokens_per_second_per_gpu, candidate.bytes / 1073741824.0);
  for (const auto& [section, entries] : settings.as_object()) {
    if (!entries.is_object() || entries.size() == 0) continue;
    text += section + ":\n";
    // JSON is YAML.
    for (const auto& [key, value] : entries.as_object()) text += fmt::format("  {}: {}\n", key, value.dump());
  }
  return text;
}

}  // namespace megatron::autotune
