#pragma once

#include "megatron/config/schema/setting.h"

namespace megatron::conditions {

// What rows of settings/*.def name in when(): a setting that is given while its condition does not hold is
// accepted, for launch scripts carry settings along, and noted as without effect.
extern const Condition has_experts;
extern const Condition in_fp8;
extern const Condition in_delayed_fp8;
extern const Condition keeps_layers_in_bf16;
extern const Condition overlaps_tp;
extern const Condition has_stages;
extern const Condition has_chunks;
extern const Condition has_cuda_graphs;
extern const Condition offloads_layers;
extern const Condition offloads_modules;
extern const Condition is_fsdp;
extern const Condition decays_by_wsd;
extern const Condition uses_adam;
extern const Condition uses_sgd;
extern const Condition saves;
extern const Condition loads;
extern const Condition profiles;

}  // namespace megatron::conditions
