#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megatron/base/json.h"
#include "megatron/config/schema/setting.h"

namespace megatron {

enum class RouterScore { softmax, sigmoid, sqrtsoftplus };
constexpr auto names(RouterScore) { return std::array{"softmax", "sigmoid", "sqrtsoftplus"}; }
enum class RouterDType { none, fp32, fp64 };
constexpr auto names(RouterDType) { return std::array{"none", "fp32", "fp64"}; }
enum class TokenDispatcher { allgather, alltoall, flex };
constexpr auto names(TokenDispatcher) { return std::array{"allgather", "alltoall", "flex"}; }
enum class FlexBackend { deepep, hybridep, ncclep };
constexpr auto names(FlexBackend) { return std::array{"deepep", "hybridep", "ncclep"}; }
enum class TokenDropPolicy { probs, position };
constexpr auto names(TokenDropPolicy) { return std::array{"probs", "position"}; }
enum class ExpertCommDType { bf16, mxfp8 };
constexpr auto names(ExpertCommDType) { return std::array{"bf16", "mxfp8"}; }

struct MoeConfig {
  // Mixture of experts
  int64_t num_moe_experts = 0;
  Json moe_layer_freq = Json(1);
  int64_t moe_ffn_hidden_size = 0;
  int64_t moe_router_topk = 2;
  std::vector<std::string> moe_router_load_balancing_type = {"aux_loss"};
  std::vector<double> moe_aux_loss_coeff = {0.0};
  double moe_z_loss_coeff = 0;
  RouterScore moe_router_score_function = RouterScore::softmax;
  bool moe_router_pre_softmax = false;
  bool moe_router_normalize_topk = true;
  std::optional<double> moe_router_topk_scaling_factor;
  int64_t moe_router_num_groups = 0;
  int64_t moe_router_group_topk = 0;
  int64_t moe_router_group_score_topk = 0;
  bool moe_router_enable_expert_bias = false;
  double moe_router_bias_update_rate = 1e-3;
  double moe_router_quantile_balancing_ema = 0;
  RouterDType moe_router_dtype = RouterDType::none;
  bool moe_router_padding_for_quantization = false;
  bool moe_router_force_load_balancing = false;
  std::optional<double> moe_router_force_biased;
  bool moe_enable_routing_replay = false;
  TokenDispatcher moe_token_dispatcher_type = TokenDispatcher::allgather;
  FlexBackend moe_flex_dispatcher_backend = FlexBackend::deepep;
  std::optional<int64_t> moe_flex_dispatcher_num_sms;
  std::optional<double> moe_expert_capacity_factor;
  bool moe_pad_expert_input_to_capacity = false;
  TokenDropPolicy moe_token_drop_policy = TokenDropPolicy::probs;
  std::optional<double> moe_expert_rank_capacity_factor;
  int64_t moe_shared_expert_intermediate_size = 0;
  bool moe_shared_expert_gate = false;
  bool moe_shared_expert_overlap = false;
  int64_t moe_latent_size = 0;
  bool moe_apply_probs_on_input = false;
  std::optional<double> moe_input_jitter_eps;
  ExpertCommDType moe_dispatch_fwd_dtype = ExpertCommDType::bf16;
  ExpertCommDType moe_combine_bwd_dtype = ExpertCommDType::bf16;
  bool moe_per_layer_logging = false;
  bool moe_paged_stash = false;
  int64_t moe_paged_stash_page_size = 64;
  double moe_paged_stash_buffer_size_factor_cuda = 1.1;
  double moe_paged_stash_buffer_size_factor_cpu = 0;
  bool moe_use_upcycling = false;
  int64_t moe_upcycling_granularity = 1;
};

template <>
const Schema& schema<MoeConfig>();

}  // namespace megatron
