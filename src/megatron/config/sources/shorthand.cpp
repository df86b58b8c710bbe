#include "megatron/config/sources/shorthand.h"

#include <array>

#include "megatron/config/schema/catalog.h"
#include "megatron/config/sources/string_list.h"
#include "megatron/config/sources/value_parser.h"

namespace megatron {
namespace {

constexpr std::array kShorthands = {
    Shorthand{"--swiglu", "model.gated_linear_unit=true model.activation_func=silu", "gated SiLU"},
    Shorthand{"--quick-geglu", "model.gated_linear_unit=true model.activation_func=quick_gelu",
              "gated quick GELU"},
    Shorthand{"--squared-relu", "model.gated_linear_unit=false model.activation_func=squared_relu",
              "squared ReLU"},
    Shorthand{"--openai-gelu", "model.gated_linear_unit=false model.activation_func=gelu_tanh",
              "GELU by its tanh form"},
    Shorthand{"--use-rotary-position-embeddings", "model.position_embedding_type=rope", "rotary positions"},
    Shorthand{"--recompute-activations",
              "model.recompute_granularity=selective model.recompute_modules=[core_attn]",
              "recompute attention's inner activations"},
    // Names of older scripts
    Shorthand{"--batch-size", "train.micro_batch_size={}", "the old name of --micro-batch-size"},
    Shorthand{"--model-parallel-size", "model.tensor_model_parallel_size={}",
              "the old name of --tensor-model-parallel-size"},
    Shorthand{"--warmup", "scheduler.lr_warmup_fraction={}", "the old name of --lr-warmup-fraction"},
    Shorthand{"--layernorm-epsilon", "model.layernorm_epsilon={}", "the old name of --norm-epsilon"},
    Shorthand{"--use-custom-fsdp", "ddp.use_megatron_fsdp=true", "the old name of --use-megatron-fsdp"},
    Shorthand{"--checkpoint-activations", "model.recompute_granularity=full model.recompute_method=uniform",
              "the old name of recomputing whole layers", true},
    Shorthand{"--activations-checkpoint-method", "model.recompute_granularity=full model.recompute_method={}",
              "the old name of --recompute-method"},
    Shorthand{"--activations-checkpoint-num-layers", "model.recompute_num_layers={}",
              "the old name of --recompute-num-layers"},
    Shorthand{"--distribute-checkpointed-activations", "model.distribute_saved_activations=true",
              "the old name of --distribute-saved-activations"},
    Shorthand{"--export-qk-l2-norm", "model.qk_l2_norm=true", "another name of --qk-l2-norm"},
    Shorthand{"--export-moe-apply-probs-on-input", "model.moe_apply_probs_on_input=true",
              "another name of --moe-apply-probs-on-input"},
    Shorthand{"--enable-cuda-graph", "model.cuda_graph_impl=local", "CUDA graphs of layers", true},
    Shorthand{"--external-cuda-graph", "model.cuda_graph_impl=transformer_engine", "CUDA graphs of layers",
              true},
    Shorthand{"--use-torch-fsdp2", "ddp.use_megatron_fsdp=true", "as --use-megatron-fsdp"},
    Shorthand{"--torch-fsdp2-no-reshard-after-forward", "ddp.data_parallel_sharding_strategy=optim_grads",
              "parameters stay gathered", true},
    Shorthand{"--fp8-hybrid", "model.fp8=hybrid", "fp8 GEMMs with e5m2 gradients"},
    Shorthand{"--fp8-e4m3", "model.fp8=e4m3", "fp8 GEMMs, e4m3 throughout"},
    Shorthand{"--llm-tp", "model.tensor_model_parallel_size={}",
              "MIMO's name of --tensor-model-parallel-size"},
    Shorthand{"--llm-pp", "model.pipeline_model_parallel_size={}",
              "MIMO's name of --pipeline-model-parallel-size"},
    Shorthand{"--llm-cp", "model.context_parallel_size={}", "MIMO's name of --context-parallel-size"},
    Shorthand{"--llm-ep", "model.expert_model_parallel_size={}",
              "MIMO's name of --expert-model-parallel-size"},
    Shorthand{"--llm-expt-tp", "model.expert_tensor_parallel_size={}",
              "MIMO's name of --expert-tensor-parallel-size"},
    Shorthand{"--use-pixel-shuffle-only", "model.vision_pixel_shuffle=true",
              "--pixel-shuffle, in scripts that generate text"},
    Shorthand{"--no-check-for-nan-in-loss-and-grad",
              "rerun_state_machine.check_for_nan_in_loss=false ddp.check_for_nan_in_grad=false",
              "go on with NaN and Inf losses and gradients"},
};

}  // namespace

std::span<const Shorthand> shorthands() { return kShorthands; }

const Shorthand* find_shorthand(std::string_view flag) {
  const std::string name = canonical_flag(flag);
  for (const Shorthand& row : kShorthands)
    if (row.flag == name) return &row;
  return nullptr;
}

std::vector<std::pair<std::string, Json>> settings_of(const Shorthand& shorthand, const Json& value) {
  std::vector<std::pair<std::string, Json>> settings;
  for_each_word(shorthand.settings, [&](std::string_view one) {
    const size_t equals = one.find('=');
    const std::string_view given = one.substr(equals + 1);
    settings.emplace_back(one.substr(0, equals), given == "{}" ? value : parse_override_value(given).value);
  });
  return settings;
}

std::string_view flag_of_spec(std::string_view name) {
  for (std::string_view known :
       {"gdp_stack_spec", "gdp_inference_stack_spec", "gated_delta_product_stack_spec",
        "gated_delta_product_inference_stack_spec"})
    if (name == known) return "--gated-delta-product";
  return {};
}

}  // namespace megatron
