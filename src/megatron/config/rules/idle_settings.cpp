// Settings of something that is off are accepted, for launch scripts carry them along; each is named, so that
// none is ignored in silence.
#include "megatron/config/rules/rules.h"
#include "megatron/config/schema/value.h"
#include "megatron/config/sources/string_list.h"

namespace megatron {
namespace {

struct Condition {
  std::string_view settings;  // a star at the end stands for all that begin so
  bool (*holds)(const Config&);
  std::string_view without;
};

constexpr Condition kConditions[] = {
    {"model.moe_*", [](const Config& c) { return c.model.num_moe_experts > 0; }, "--num-experts"},
    {"model.fp8_recipe", [](const Config& c) { return c.precision.fp8 != Fp8Format::none; }, "--fp8-format"},
    {"model.fp8_margin model.fp8_amax_history_len model.fp8_amax_compute_algo",
     [](const Config& c) {
       return c.precision.fp8 != Fp8Format::none && c.precision.fp8_recipe == Fp8Recipe::delayed;
     },
     "--fp8-format and --fp8-recipe delayed"},
    {"model.num_layers_at_start_in_bf16 model.num_layers_at_end_in_bf16",
     [](const Config& c) { return c.precision.first_last_layers_bf16; }, "--first-last-layers-bf16"},
    {"model.tp_comm_overlap_* model.tp_comm_bulk_*",
     [](const Config& c) { return c.parallel.tp_comm_overlap; }, "--tp-comm-overlap"},
    {"model.account_for_* model.overlap_p2p_comm",
     [](const Config& c) { return c.parallel.pipeline_model_parallel_size > 1; },
     "--pipeline-model-parallel-size above 1"},
    {"model.microbatch_group_size_per_vp_stage",
     [](const Config& c) { return c.parallel.virtual_pipeline_model_parallel_size > 1; },
     "several chunks a pipeline stage"},
    {"model.cuda_graph_warmup_steps",
     [](const Config& c) { return c.execution.cuda_graph_impl != GraphImpl::none; }, "--cuda-graph-impl"},
    {"model.cpu_offloading_activations", [](const Config& c) { return c.execution.cpu_offloading; },
     "--cpu-offloading"},
    {"model.min_offloaded_tensor_size model.activation_offload_fraction "
     "model.fine_grained_offloading_max_inflight_offloads",
     [](const Config& c) { return c.execution.fine_grained_activation_offloading; },
     "--fine-grained-activation-offloading"},
    {"ddp.data_parallel_sharding_strategy", [](const Config& c) { return c.ddp.use_megatron_fsdp; },
     "--use-megatron-fsdp"},
    {"scheduler.lr_wsd_*", [](const Config& c) { return c.scheduler.lr_decay_style == LrDecay::wsd; },
     "--lr-decay-style WSD"},
    {"optimizer.adam_*", [](const Config& c) { return c.optimizer.optimizer != OptimizerKind::sgd; },
     "--optimizer adam"},
    {"optimizer.sgd_momentum", [](const Config& c) { return c.optimizer.optimizer == OptimizerKind::sgd; },
     "--optimizer sgd"},
    {"checkpoint.save_interval checkpoint.save_optim",
     [](const Config& c) { return !c.checkpoint.save.empty(); }, "--save DIR"},
    {"checkpoint.load_optim checkpoint.finetune checkpoint.exit_on_missing_checkpoint",
     [](const Config& c) { return !c.checkpoint.load.empty(); }, "--load DIR"},
    {"profiling.profile_step_* profiling.profile_ranks", [](const Config& c) { return c.profiling.profile; },
     "--profile"},
};

void settings_are_used(ConfigBuilder& builder) {
  if (builder.purpose == Purpose::model || builder.purpose == Purpose::forward) return;
  Config defaults;
  for (const Catalog::Entry& entry : Catalog::all().entries()) {
    const std::string name = entry.setting->name();
    if (!builder.given(name) ||
        builder.value(name) == read_value(*entry.setting, entry.section->object(defaults)))
      continue;
    for (const Condition& condition : kConditions)
      if (!condition.holds(builder.config) &&
          any_word(condition.settings, [&](std::string_view word) { return covers_name(word, name); }))
        builder.note(fmt::format("{} has no effect without {}", entry.setting->key, condition.without));
  }
}

constexpr Rule kIdleRules[] = {
    {"settings_are_used", "", "settings of something that is off are named", settings_are_used},
};

}  // namespace

std::span<const Rule> idle_rules() { return kIdleRules; }

}  // namespace megatron
