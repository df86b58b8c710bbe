#include <algorithm>

#include "megatron/config/resolve/inactive_slots.h"
#include "megatron/config/resolve/precision_recipe.h"
#include "megatron/config/rules/nonuniform_refusals.h"
#include "megatron/config/rules/rules.h"

namespace megatron {
namespace {

constexpr const char* slots_key = "model.non_active_ranks_per_dp";

// The setting that a refusal is about.
const char* cause(const ParallelConfig& parallel) {
  return parallel.non_active_ranks_per_dp.empty() ? "model.tp_spares" : slots_key;
}

void tp_base_is_tp(ConfigBuilder& builder) {
  const ParallelConfig& p = builder.config.parallel;
  if (p.tp_base > 0 && p.tp_base != p.tensor_model_parallel_size)
    builder.reject(
        "model.tp_base",
        fmt::format("is {}, but tensor_model_parallel_size is {}", p.tp_base, p.tensor_model_parallel_size),
        fmt::format("use {}, or leave it out", p.tensor_model_parallel_size));
}

void inactive_slots_exist(ConfigBuilder& builder) {
  const ParallelConfig& p = builder.config.parallel;
  if (!has_inactive_slots(p)) return;
  const int64_t tp = p.tensor_model_parallel_size;
  if (p.tp_spares >= tp)
    return builder.reject("model.tp_spares", fmt::format("leaves none of {} tensor-parallel ranks", tp),
                          fmt::format("use at most {}", tp - 1));
  std::vector<InactiveSlotsEntry> list;
  try {
    list = inactive_slots(p);
  } catch (const Error& error) {
    return builder.reject(slots_key, reason_of(error), "leave it out");
  }
  const auto outside = [&](const char* what, int64_t value, int64_t size) {
    if (value < size) return false;
    builder.reject(cause(p), fmt::format("names {} {}, but there are {}, counted from 0", what, value, size),
                   "leave it out");
    return true;
  };
  for (const InactiveSlotsEntry& entry : list) {
    if (builder.data_parallel_size && outside("replica", entry.dp, *builder.data_parallel_size)) return;
    if (outside("context slice", entry.cp, p.context_parallel_size)) return;
    if (outside("stage", entry.pp, p.pipeline_model_parallel_size)) return;
    for (int64_t slot : entry.slots)
      if (outside("slot", slot, tp)) return;
    if (p.tp_spares > 0 && static_cast<int64_t>(entry.slots.size()) > p.tp_spares)
      return builder.reject(
          "model.tp_spares",
          fmt::format("is {}, but replica {} has {} lost slots", p.tp_spares, entry.dp, entry.slots.size()),
          fmt::format("use {}, or leave it out", entry.slots.size()));
    std::vector<int64_t> lost = entry.slots;
    std::sort(lost.begin(), lost.end());
    lost.erase(std::unique(lost.begin(), lost.end()), lost.end());
    if (static_cast<int64_t>(lost.size()) >= tp)
      return builder.reject(cause(p), fmt::format("leaves no rank of replica {}", entry.dp), "leave it out");
  }
}

// What ranks share whole, and how many of it there are; 0: none.
std::vector<std::pair<const char*, int64_t>> shared_units(const ModelConfig& model) {
  return {{"num_attention_heads", model.num_attention_heads},
          {"mamba_num_groups", has_layers(model, 'M') ? model.mamba_num_groups : 0},
          {"linear_num_key_heads", has_delta_nets(model) ? model.linear_num_key_heads : 0}};
}

void enough_units(ConfigBuilder& builder) {
  const ParallelConfig& p = builder.config.parallel;
  if (!has_inactive_slots(p)) return;
  for (const auto& [name, number] : shared_units(builder.config.model))
    if (number > 0 && number < p.tensor_model_parallel_size)
      builder.reject("model.tensor_model_parallel_size",
                     fmt::format("has more ranks than {} = {} can be shared by", name, number),
                     fmt::format("use at most {}", number));
}

bool has_encoder_and_decoder(const ModelConfig& model) {
  return model.encoder_num_layers > 0 && model.decoder_num_layers > 0;
}

// What is not made for unequal replicas, and what to do about it.
void nonuniform_goes_with(ConfigBuilder& builder) {
  const Config& config = builder.config;
  if (!has_inactive_slots(config.parallel)) return;
  if (has_encoder_and_decoder(config.model))
    builder.reject(cause(config.parallel), "encoder-decoder models need replicas of one tensor-parallel size",
                   "leave it out");
  for (const NonuniformRefusal& refusal : nonuniform_refusals(config))
    builder.reject(refusal.key, "does not go with replicas of different tensor-parallel sizes", refusal.fix);
}

constexpr Rule kNonuniformRules[] = {
    {"tp_base_is_tp", "model.tp_base model.tensor_model_parallel_size",
     "the tensor-parallel size of whole replicas is that of the layout", tp_base_is_tp},
    {"inactive_slots_exist",
     "model.non_active_ranks_per_dp model.tp_spares model.num_reduced_tp_dp_ranks "
     "model.tensor_model_parallel_size model.pipeline_model_parallel_size model.context_parallel_size",
     "lost slots are those of a replica, which keeps some", inactive_slots_exist},
    {"enough_units",
     "model.non_active_ranks_per_dp model.tp_spares model.tensor_model_parallel_size "
     "model.num_attention_heads model.mamba_num_groups model.linear_num_key_heads",
     "ranks of unequal replicas have a head each", enough_units},
    {"nonuniform_goes_with",
     "model.non_active_ranks_per_dp model.tp_spares model.expert_model_parallel_size "
     "model.expert_tensor_parallel_size model.num_moe_experts model.encoder_num_layers "
     "model.decoder_num_layers model.tp_comm_overlap model.cp_comm_type "
     "model.attention_dropout model.fp8 model.te_precision_config_file model.qk_clip model.cuda_graph_impl "
     "ddp.average_in_collective "
     "ddp.use_megatron_fsdp ddp.num_distributed_optimizer_instances optimizer.optimizer "
     "train.check_weight_hash_across_dp_replicas_interval logger.log_params_norm "
     "ddp.use_distributed_optimizer distill.export_kd_teacher_load distill.export_quant_cfg "
     "distill.logits_save_dir distill.logits_load_dir "
     "rl.perform_rl_step elastic.flextron",
     "what unequal replicas cannot do is refused", nonuniform_goes_with},
};

}  // namespace

std::vector<NonuniformRefusal> nonuniform_refusals(const Config& config) {
  std::vector<NonuniformRefusal> list;
  const auto refuse = [&](bool found, const char* key, const char* fix) {
    if (found) list.push_back({key, fix});
  };
  const ParallelConfig& p = config.parallel;
  refuse(p.expert_model_parallel_size > 1, "model.expert_model_parallel_size",
         "use --expert-model-parallel-size 1");
  refuse(config.model.num_moe_experts > 0 && p.expert_tensor_parallel_size != p.tensor_model_parallel_size,
         "model.expert_tensor_parallel_size", "leave --expert-tensor-parallel-size out");
  refuse(p.tp_comm_overlap, "model.tp_comm_overlap", "leave --tp-comm-overlap out");
  refuse(std::any_of(p.cp_comm_type.begin(), p.cp_comm_type.end(),
                     [](const std::string& kind) { return kind.starts_with("a2a"); }) &&
             p.context_parallel_size > 1,
         "model.cp_comm_type", "use --cp-comm-type p2p");
  refuse(config.model.attention_dropout > 0, "model.attention_dropout", "use --attention-dropout 0");
  const bool fp8 = config.precision.fp8 != Fp8Format::none;
  refuse(fp8, "model.fp8", "leave --fp8-format out");
  refuse(!fp8 && may_have_fp8_linears(config.precision), "model.te_precision_config_file",
         "leave --te-precision-config-file out");
  refuse(config.execution.cuda_graph_impl != GraphImpl::none, "model.cuda_graph_impl",
         "leave --cuda-graph-impl out");
  refuse(config.ddp.average_in_collective, "ddp.average_in_collective", "leave it out");
  refuse(config.ddp.use_megatron_fsdp, "ddp.use_megatron_fsdp", "use --use-distributed-optimizer instead");
  refuse(config.ddp.num_distributed_optimizer_instances > 1, "ddp.num_distributed_optimizer_instances",
         "use --num-distributed-optimizer-instances 1");
  refuse(config.model.qk_clip, "model.qk_clip", "leave --qk-clip out");
  refuse(config.optimizer.is_muon() || config.optimizer.is_soap(), "optimizer.optimizer",
         "use --optimizer adam");
  refuse(config.train.check_weight_hash_across_dp_replicas_interval > 0,
         "train.check_weight_hash_across_dp_replicas_interval", "leave it out");
  refuse(config.logger.log_params_norm && !config.ddp.use_distributed_optimizer, "logger.log_params_norm",
         "use --use-distributed-optimizer, or leave it out");
  refuse(config.rl.perform_rl_step, "rl.perform_rl_step", "leave --perform-rl-step out");
  refuse(config.distill.has_teacher(), "distill.export_kd_teacher_load",
         "leave --export-kd-teacher-load out");
  refuse(config.distill.records(), "distill.logits_save_dir", "leave --logits-save-dir out");
  refuse(config.distill.learns_from_recording(), "distill.logits_load_dir", "leave --logits-load-dir out");
  refuse(config.distill.rounds(), "distill.export_quant_cfg", "leave --export-quant-cfg out");
  refuse(config.elastic.flextron, "elastic.flextron", "leave --flextron out");
  return list;
}

bool may_lose_ranks(const Config& config) {
  const int64_t tp = config.parallel.tensor_model_parallel_size;
  const auto units = shared_units(config.model);
  return tp > 1 && nonuniform_refusals(config).empty() && config.model.model_type != ModelType::t5 &&
         !has_encoder_and_decoder(config.model) &&
         std::all_of(units.begin(), units.end(),
                     [&](const auto& unit) { return unit.second == 0 || unit.second >= tp; });
}

std::span<const Rule> nonuniform_rules() { return kNonuniformRules; }

}  // namespace megatron
