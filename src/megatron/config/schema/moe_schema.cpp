#include "megatron/config/schema/moe_config.h"

namespace megatron {
namespace {

Schema moe_config_schema() {
  using C = MoeConfig;
  Schema s("model", "Mixture of experts");

  // Mixture of experts
  s.field<&C::num_moe_experts>("num_moe_experts", "experts of each expert layer; 0 for a dense model")
      .min(0)
      .flag("--num-experts");
  s.field<&C::moe_layer_freq>("moe_layer_freq",
                              "every N-th layer has experts, or a 0/1 list with 1 for such layers")
      .pattern();
  s.field<&C::moe_ffn_hidden_size>("moe_ffn_hidden_size", "width of one expert")
      .min(1)
      .when_unset("ffn_hidden_size");
  s.field<&C::moe_router_topk>("moe_router_topk", "experts that each token goes to").min(1);
  s.field<&C::moe_router_load_balancing_type>("moe_router_load_balancing_type",
                                              "how the load is kept even; several may be combined")
      .one_of({"aux_loss", "seq_aux_loss", "global_aux_loss", "sinkhorn", "quantile_balancing", "none"});
  s.field<&C::moe_aux_loss_coeff>("moe_aux_loss_coeff", "weight of the balancing loss, one per kind").min(0);
  s.field<&C::moe_z_loss_coeff>("moe_z_loss_coeff", "weight of the router's z-loss").min(0);
  s.field<&C::moe_router_score_function>("moe_router_score_function", "what turns router logits into scores");
  s.field<&C::moe_router_pre_softmax>("moe_router_pre_softmax",
                                      "softmax over all experts before choosing, instead of over the chosen");
  s.field<&C::moe_router_normalize_topk>("moe_router_normalize_topk",
                                         "weights from other scores than softmax are made to sum to one");
  s.field<&C::moe_router_topk_scaling_factor>("moe_router_topk_scaling_factor",
                                              "factor of the chosen experts' weights")
      .above(0);
  s.field<&C::moe_router_num_groups>("moe_router_num_groups",
                                     "groups of experts, of which moe_router_group_topk are open to a token")
      .min(1);
  s.field<&C::moe_router_group_topk>("moe_router_group_topk", "groups open to a token").min(1);
  s.field<&C::moe_router_group_score_topk>("moe_router_group_score_topk",
                                           "experts whose scores make a group's score")
      .min(1)
      .when_unset("moe_router_topk / moe_router_group_topk");
  s.field<&C::moe_router_enable_expert_bias>("moe_router_enable_expert_bias",
                                             "a bias, moved after each batch, evens the load without a loss");
  s.field<&C::moe_router_bias_update_rate>("moe_router_bias_update_rate", "step of that bias").min(0);
  s.field<&C::moe_router_quantile_balancing_ema>("moe_router_quantile_balancing_ema",
                                                 "memory of quantile balancing")
      .min(0)
      .max(1);
  s.field<&C::moe_router_dtype>("moe_router_dtype",
                                "precision of the router's logits; none keeps the activations'");
  s.field<&C::moe_router_padding_for_quantization>(
       "moe_router_padding_for_quantization", "each expert's tokens are padded to the quantised GEMM's tile")
      .also("--moe-router-padding-for-fp8");
  s.field<&C::moe_router_force_load_balancing>("moe_router_force_load_balancing",
                                               "random routing, for benchmarks only");
  s.field<&C::moe_router_force_biased>("moe_router_force_biased",
                                       "biased random routing, for benchmarks only");
  s.field<&C::moe_enable_routing_replay>("moe_enable_routing_replay",
                                         "routing is recorded and may be replayed");
  s.field<&C::moe_token_dispatcher_type>("moe_token_dispatcher_type", "how tokens reach their experts");
  s.field<&C::moe_flex_dispatcher_backend>("moe_flex_dispatcher_backend", "kernels of the flex dispatcher");
  s.field<&C::moe_flex_dispatcher_num_sms>("moe_flex_dispatcher_num_sms",
                                           "streaming multiprocessors that the flex dispatcher may use")
      .min(1)
      .also("--moe-deepep-num-sms")
      .also("--moe-hybridep-num-sms");
  s.field<&C::moe_expert_capacity_factor>(
      "moe_expert_capacity_factor",
      "tokens an expert takes, as a multiple of the even share; more are dropped");
  s.field<&C::moe_pad_expert_input_to_capacity>("moe_pad_expert_input_to_capacity",
                                                "experts always take their full capacity");
  s.field<&C::moe_token_drop_policy>("moe_token_drop_policy",
                                     "which tokens are dropped: the least probable or the last");
  s.field<&C::moe_expert_rank_capacity_factor>("moe_expert_rank_capacity_factor",
                                               "tokens a rank takes, as a multiple of the even share")
      .above(0);
  s.field<&C::moe_shared_expert_intermediate_size>("moe_shared_expert_intermediate_size",
                                                   "total width of the experts that every token goes to")
      .min(0);
  s.field<&C::moe_shared_expert_gate>("moe_shared_expert_gate",
                                      "the shared experts' output is multiplied by a gate");
  s.field<&C::moe_shared_expert_overlap>("moe_shared_expert_overlap",
                                         "the shared experts run while tokens travel");
  s.field<&C::moe_latent_size>("moe_latent_size",
                               "width to which tokens are projected for the routed experts; 0: hidden_size")
      .min(0);
  s.field<&C::moe_apply_probs_on_input>("moe_apply_probs_on_input",
                                        "the router's weight multiplies the expert's input");
  s.field<&C::moe_input_jitter_eps>("moe_input_jitter_eps",
                                    "router inputs are multiplied by noise of this size")
      .min(0)
      .max(1);
  s.field<&C::moe_dispatch_fwd_dtype>("moe_dispatch_fwd_dtype", "precision of tokens on the way to experts");
  s.field<&C::moe_combine_bwd_dtype>("moe_combine_bwd_dtype", "precision of gradients on the way to experts");
  s.field<&C::moe_per_layer_logging>("moe_per_layer_logging", "balancing losses are logged for each layer");
  s.field<&C::moe_paged_stash>("moe_paged_stash", "activations of experts are kept in pages");
  s.field<&C::moe_paged_stash_page_size>("moe_paged_stash_page_size", "tokens in a page").min(1);
  s.field<&C::moe_paged_stash_buffer_size_factor_cuda>("moe_paged_stash_buffer_size_factor_cuda",
                                                       "pages on the device, as a multiple of the even share")
      .min(0);
  s.field<&C::moe_paged_stash_buffer_size_factor_cpu>("moe_paged_stash_buffer_size_factor_cpu",
                                                      "pages in host memory, as a multiple of the even share")
      .min(0);
  s.field<&C::moe_use_upcycling>("moe_use_upcycling", "a dense checkpoint is turned into experts");
  s.field<&C::moe_upcycling_granularity>("moe_upcycling_granularity",
                                         "parts into which each dense layer is cut for its experts")
      .min(1);
  return s;
}

}  // namespace

template <>
const Schema& schema<MoeConfig>() {
  static const Schema rows = moe_config_schema();
  return rows;
}

}  // namespace megatron
