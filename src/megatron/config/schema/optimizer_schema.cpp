#include "megatron/config/schema/optimizer_config.h"

namespace megatron {
namespace {

Schema optimizer_config_schema() {
  using C = OptimizerConfig;
  Schema s("optimizer", "Optimizer");
  s.field<&C::optimizer>("optimizer", "update rule");
  s.field<&C::lr>("lr", "learning rate after warm-up").min(0);
  s.field<&C::min_lr>("min_lr", "learning rate at the end of the decay").min(0);
  s.field<&C::decoupled_lr>("decoupled_lr", "learning rate of embedding and output head").min(0);
  s.field<&C::decoupled_min_lr>("decoupled_min_lr", "its value at the end of the decay").min(0);
  s.field<&C::weight_decay>("weight_decay", "weight decay of matrices").min(0);
  s.field<&C::decoupled_weight_decay>("decoupled_weight_decay",
                                      "weights decay by themselves (AdamW) instead of through the gradient");
  s.field<&C::apply_wd_to_qk_layernorm>("apply_wd_to_qk_layernorm", "norms of queries and keys decay too");
  s.field<&C::clip_grad>("clip_grad", "largest gradient norm; 0 leaves gradients alone").min(0);
  s.field<&C::grad_norm_skip_threshold>("grad_norm_skip_threshold",
                                        "steps with a larger gradient norm are skipped")
      .above(0)
      .or_infinity();
  s.field<&C::adam_beta1>("adam_beta1", "Adam's memory of gradients").min(0).max(1);
  s.field<&C::adam_beta2>("adam_beta2", "Adam's memory of squared gradients").min(0).max(1);
  s.field<&C::adam_eps>("adam_eps", "added to Adam's denominator").above(0);
  s.field<&C::sgd_momentum>("sgd_momentum", "memory of SGD").min(0).max(1);
  s.field<&C::muon_momentum>("muon_momentum", "memory of Muon").min(0).max(1);
  s.field<&C::muon_nesterov>("muon_nesterov", "Muon looks one step ahead");
  s.field<&C::muon_split_qkv>("muon_split_qkv", "Muon treats Q, K and V apart")
      .off_flag("--muon-no-split-qkv");
  s.field<&C::muon_scale_mode>("muon_scale_mode", "how Muon scales its update");
  s.field<&C::muon_coefficient_type>("muon_coefficient_type", "coefficients of Muon's iteration")
      .one_of({"simple", "quintic", "polar_express"});
  s.field<&C::muon_num_ns_steps>("muon_num_ns_steps", "iterations of Muon's orthogonalisation").min(1);
  s.field<&C::muon_tp_mode>("muon_tp_mode", "how Muon works on split matrices");
  s.field<&C::muon_extra_scale_factor>("muon_extra_scale_factor", "factor of Muon's update").above(0);
  s.field<&C::muon_scalar_optimizer>("muon_scalar_optimizer", "rule for what Muon does not update");
  s.field<&C::lion_beta1>("lion_beta1", "Lion's mix of memory and gradient").min(0).max(1);
  s.field<&C::lion_beta2>("lion_beta2", "Lion's memory").min(0).max(1);
  s.field<&C::soap_shampoo_beta>("soap_shampoo_beta", "memory of SOAP's preconditioner").min(0).max(1);
  s.field<&C::soap_use_kl_shampoo>("soap_use_kl_shampoo", "SOAP's preconditioner follows the KL form");
  s.field<&C::adaptive_muon_moment2_method>("adaptive_muon_moment2_method", "second moment of adaptive Muon");
  s.field<&C::adaptive_muon_beta2>("adaptive_muon_beta2", "its memory").min(0).max(1);
  s.field<&C::adaptive_muon_eps>("adaptive_muon_eps", "added to its denominator").above(0);
  s.field<&C::loss_scale>("loss_scale", "fixed loss scale; none lets it adapt").above(0);
  s.field<&C::initial_loss_scale>("initial_loss_scale", "first loss scale").above(0);
  s.field<&C::min_loss_scale>("min_loss_scale", "smallest loss scale").above(0);
  s.field<&C::loss_scale_window>("loss_scale_window", "clean steps before the loss scale doubles").min(1);
  s.field<&C::hysteresis>("hysteresis", "overflows before the loss scale is halved").min(1);
  s.field<&C::use_precision_aware_optimizer>("use_precision_aware_optimizer",
                                             "optimizer states may be kept in fewer bits");
  s.field<&C::store_param_remainders>("store_param_remainders",
                                      "keep only the low bits of the fp32 weights beside bf16 ones");
  s.field<&C::main_grads_dtype>("main_grads_dtype", "number format of gradients").dtype({"fp32", "bf16"});
  s.field<&C::main_params_dtype>("main_params_dtype", "number format of the weights' main copy")
      .dtype({"fp32", "fp16"});
  s.field<&C::exp_avg_dtype>("exp_avg_dtype", "number format of the first moment")
      .dtype({"fp32", "fp16", "bf16", "fp8"});
  s.field<&C::exp_avg_sq_dtype>("exp_avg_sq_dtype", "number format of the second moment")
      .dtype({"fp32", "fp16", "bf16", "fp8"});
  s.field<&C::optimizer_cpu_offload>("optimizer_cpu_offload", "optimizer states live in host memory");
  s.field<&C::optimizer_offload_fraction>("optimizer_offload_fraction", "part of the states in host memory")
      .min(0)
      .max(1);
  s.field<&C::overlap_cpu_optimizer_d2h_h2d>("overlap_cpu_optimizer_d2h_h2d",
                                             "copies to and from the host overlap with the update");
  s.field<&C::optimizer_cuda_graph>("optimizer_cuda_graph", "the update is recorded and replayed");
  s.field<&C::use_layer_wise_distributed_optimizer>(
      "use_layer_wise_distributed_optimizer", "whole matrices are dealt out to ranks instead of slices");
  return s;
}

Schema scheduler_config_schema() {
  using C = SchedulerConfig;
  Schema s("scheduler", "Schedule");
  s.field<&C::lr_decay_style>("lr_decay_style", "shape of the learning rate after warm-up");
  s.field<&C::lr_wsd_decay_style>("lr_wsd_decay_style", "shape of the last part of WSD");
  s.field<&C::lr_decay_iters>("lr_decay_iters", "steps until the lowest learning rate")
      .min(1)
      .when_unset("train_iters");
  s.field<&C::lr_decay_samples>("lr_decay_samples", "the same in sequences")
      .min(1)
      .when_unset("train_samples");
  s.field<&C::lr_wsd_decay_iters>("lr_wsd_decay_iters", "steps of WSD's last part").min(1);
  s.field<&C::lr_wsd_decay_samples>("lr_wsd_decay_samples", "the same in sequences").min(1);
  s.field<&C::lr_warmup_fraction>("lr_warmup_fraction", "warm-up as a part of the decay").min(0).max(1);
  s.field<&C::lr_warmup_iters>("lr_warmup_iters", "steps of warm-up").min(0).also("--warmup-iters");
  s.field<&C::lr_warmup_samples>("lr_warmup_samples", "the same in sequences").min(0);
  s.field<&C::lr_warmup_init>("lr_warmup_init", "learning rate at the first step").min(0);
  s.field<&C::start_weight_decay>("start_weight_decay", "weight decay at the first step")
      .min(0)
      .when_unset("optimizer.weight_decay");
  s.field<&C::end_weight_decay>("end_weight_decay", "weight decay at the last step")
      .min(0)
      .when_unset("optimizer.weight_decay");
  s.field<&C::weight_decay_incr_style>("weight_decay_incr_style", "shape of the weight decay between them");
  s.field<&C::override_opt_param_scheduler>("override_opt_param_scheduler",
                                            "this schedule replaces the checkpoint's");
  s.field<&C::use_checkpoint_opt_param_scheduler>("use_checkpoint_opt_param_scheduler",
                                                  "the checkpoint's schedule replaces this one");
  return s;
}

}  // namespace

template <>
const Schema& schema<OptimizerConfig>() {
  static const Schema rows = optimizer_config_schema();
  return rows;
}

template <>
const Schema& schema<SchedulerConfig>() {
  static const Schema rows = scheduler_config_schema();
  return rows;
}

}  // namespace megatron
