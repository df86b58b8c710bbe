#include "megatron/config/schema/precision_config.h"

namespace megatron {
namespace {

Schema precision_config_schema() {
  using C = PrecisionConfig;
  Schema s("model", "Precision");

  // Number formats
  s.field<&C::fp16>("fp16", "compute in fp16 with loss scaling").alias("optimizer.fp16");
  s.field<&C::bf16>("bf16", "compute in bf16").alias("optimizer.bf16");
  s.field<&C::params_dtype>("params_dtype", "number format of the parameters")
      .dtype({"fp32", "bf16", "fp16", "fp64"})
      .no_flag()
      .alias("optimizer.params_dtype")
      .when_unset("bf16 with bf16, fp16 with fp16, else fp32");
  s.field<&C::pipeline_dtype>("pipeline_dtype", "number format of activations between stages")
      .dtype({"fp32", "bf16", "fp16", "fp64"})
      .no_flag()
      .when_unset("params_dtype");
  s.field<&C::output_logit_dtype>("output_logit_dtype", "number format of the logits")
      .dtype({"fp32", "bf16"})
      .when_unset("that of the output head's input");
  s.field<&C::fp16_lm_cross_entropy>("fp16_lm_cross_entropy", "the loss runs in fp16");
  s.field<&C::disable_bf16_reduced_precision_matmul>("disable_bf16_reduced_precision_matmul",
                                                     "bf16 products accumulate in fp32 all the way");
  s.field<&C::deterministic_mode>("deterministic_mode", "only algorithms that give the same bits each run");

  // fp8
  s.field<&C::fp8>("fp8", "8-bit matrix products: e4m3 throughout, or hybrid with e5m2 gradients")
      .flag("--fp8-format");
  s.field<&C::fp8_recipe>("fp8_recipe", "how fp8 scales are found").alias("optimizer.fp8_recipe");
  s.field<&C::fp8_param>("fp8_param", "parameters are kept in fp8")
      .flag("--fp8-param-gather")
      .also("--fp8-param")
      .alias("model.fp8_param_gather")
      .alias("ddp.fp8_param_gather");
  s.field<&C::fp8_margin>("fp8_margin", "powers of two kept free above the largest value").min(0);
  s.field<&C::fp8_interval>("fp8_interval", "steps between new scales").min(1);
  s.field<&C::fp8_amax_history_len>("fp8_amax_history_len",
                                    "steps over which the largest value is remembered")
      .min(1);
  s.field<&C::fp8_amax_compute_algo>("fp8_amax_compute_algo", "which remembered value makes the scale");
  s.field<&C::fp8_wgrad>("fp8_wgrad", "weight gradients are computed in fp8 too");
  s.field<&C::fp8_output_proj>("fp8_output_proj", "the output head is computed in fp8 too");
  s.field<&C::fp8_dot_product_attention>("fp8_dot_product_attention", "attention is computed in fp8");
  s.field<&C::fp8_multi_head_attention>("fp8_multi_head_attention",
                                        "attention's inputs and outputs are fp8 too");
  s.field<&C::tp_only_amax_red>("tp_only_amax_red",
                                "largest values are agreed on over the tensor-parallel ranks only");
  s.field<&C::first_last_layers_bf16>("first_last_layers_bf16", "the first and last layers stay in bf16");
  s.field<&C::num_layers_at_start_in_bf16>("num_layers_at_start_in_bf16", "first layers that stay in bf16")
      .min(0);
  s.field<&C::num_layers_at_end_in_bf16>("num_layers_at_end_in_bf16", "last layers that stay in bf16").min(0);
  s.field<&C::reuse_grad_buf_for_mxfp8_param_ag>(
       "reuse_grad_buf_for_mxfp8_param_ag", "gathered MXFP8 parameters share the gradient buffer's memory")
      .alias("ddp.reuse_grad_buf_for_mxfp8_param_ag")
      .alias("optimizer.reuse_grad_buf_for_mxfp8_param_ag");
  s.field<&C::keep_fp8_transpose_cache>("keep_fp8_transpose_cache", "transposed fp8 weights stay in memory")
      .alias("ddp.keep_fp8_transpose_cache");

  // fp4
  s.field<&C::fp4>("fp4", "4-bit matrix products").flag("--fp4-format");
  s.field<&C::fp4_recipe>("fp4_recipe", "how fp4 scales are found");
  s.field<&C::fp4_param>("fp4_param", "parameters are kept in fp4")
      .flag("--fp4-param-gather")
      .also("--fp4-param")
      .alias("model.fp4_param_gather")
      .alias("ddp.fp4_param_gather");
  s.field<&C::te_precision_config_file>("te_precision_config_file",
                                        "YAML file with the precision of single modules")
      .alias("model.quant_recipe");
  return s;
}

}  // namespace

template <>
const Schema& schema<PrecisionConfig>() {
  static const Schema rows = precision_config_schema();
  return rows;
}

}  // namespace megatron
