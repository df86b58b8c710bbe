#include <algorithm>
#include <array>

#include "megatron/config/resolve/inactive_slots.h"
#include "megatron/config/rules/rules.h"

namespace megatron {
namespace {

bool balances_by(const ModelConfig& model, std::string_view kind) {
  const auto& kinds = model.moe_router_load_balancing_type;
  return std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
}

void topk_fits(ConfigBuilder& builder) {
  const ModelConfig& model = builder.config.model;
  if (model.num_moe_experts == 0) return;
  const bool constant = model.moe_router_score_function == RouterScore::softmax &&
                        !model.moe_router_pre_softmax && !balances_by(model, "sinkhorn");
  const char* one_expert = constant ? " with --moe-router-pre-softmax" : "";
  if (model.moe_router_topk > model.num_moe_experts)
    builder.reject("model.moe_router_topk", fmt::format("there are {} experts", model.num_moe_experts),
                   model.num_moe_experts == 1 ? fmt::format("use 1{}", one_expert)
                                              : fmt::format("use at most {}", model.num_moe_experts));
  // A model of files is what it is: another score would make another one of it.
  const bool of_files = builder.origin("model.moe_router_topk").source == Source::hf;
  if (model.moe_router_topk == 1 && constant && !of_files && builder.purpose != Purpose::forward)
    builder.reject("model.moe_router_topk",
                   "softmax over one chosen expert is always 1, so the router would not learn",
                   "add --moe-router-pre-softmax");
  if (model.moe_apply_probs_on_input && model.moe_router_topk != 1)
    builder.reject("model.moe_apply_probs_on_input",
                   fmt::format("moe_router_topk is {}", model.moe_router_topk),
                   fmt::format("use --moe-router-topk 1{}", one_expert));
}

void groups_fit(ConfigBuilder& builder) {
  const ModelConfig& model = builder.config.model;
  if (model.num_moe_experts == 0) return;
  const int64_t groups = model.moe_router_num_groups, open = model.moe_router_group_topk;
  if ((groups > 0) != (open > 0))
    return builder.reject(groups > 0 ? "model.moe_router_num_groups" : "model.moe_router_group_topk",
                          "group-limited routing needs both numbers",
                          groups > 0 ? "give --moe-router-group-topk N" : "give --moe-router-num-groups N");
  if (groups == 0) return;
  const auto holds_enough = [&](int64_t number) {
    return open <= number && open * (model.num_moe_experts / number) >= model.moe_router_topk;
  };
  if (model.num_moe_experts % groups != 0)
    return builder.reject(
        "model.moe_router_num_groups",
        fmt::format("does not divide num_moe_experts = {}", model.num_moe_experts),
        fmt::format("use {}", common_divisors(std::array{model.num_moe_experts}, holds_enough)));
  if (open > groups)
    return builder.reject("model.moe_router_group_topk", fmt::format("there are {} groups", groups),
                          fmt::format("use at most {}", groups));
  if (open * (model.num_moe_experts / groups) < model.moe_router_topk)
    builder.reject(
        "model.moe_router_group_topk",
        fmt::format("{} groups hold {} experts, fewer than moe_router_topk = {}", open,
                    open * (model.num_moe_experts / groups), model.moe_router_topk),
        fmt::format("use at least {}",
                    (model.moe_router_topk * groups + model.num_moe_experts - 1) / model.num_moe_experts));
}

void aux_loss_fits(ConfigBuilder& builder) {
  const ModelConfig& model = builder.config.model;
  if (model.num_moe_experts == 0) return;
  const char* key = "model.moe_aux_loss_coeff";
  const size_t kinds = model.moe_router_load_balancing_type.size(),
               coefficients = model.moe_aux_loss_coeff.size();
  std::string one_each;
  for (size_t i = 0; i < kinds; ++i)
    one_each += fmt::format(" {}", coefficients > 0 ? model.moe_aux_loss_coeff[0] : 0);
  if (kinds != coefficients && !(coefficients == 1 && model.moe_aux_loss_coeff[0] == 0))
    return builder.reject(key, fmt::format("{} coefficients for {} kinds of balancing", coefficients, kinds),
                          fmt::format("use{}", one_each));
  const bool some = std::any_of(model.moe_aux_loss_coeff.begin(), model.moe_aux_loss_coeff.end(),
                                [](double c) { return c != 0; });
  if (balances_by(model, "sinkhorn") && some)
    builder.reject(key, "sinkhorn balances without a loss", "use --moe-aux-loss-coeff 0");
  if (model.moe_router_enable_expert_bias && model.moe_router_score_function == RouterScore::softmax)
    builder.reject("model.moe_router_enable_expert_bias", "works with sigmoid and sqrtsoftplus scores only",
                   "use --moe-router-score-function sigmoid");
}

// Its bias does what losses, groups and other biases do elsewhere.
void quantiles_fit(ConfigBuilder& builder) {
  const Config& config = builder.config;
  const ModelConfig& model = config.model;
  if (model.num_moe_experts == 0 || !balances_by(model, "quantile_balancing")) return;
  const char* key = "model.moe_router_load_balancing_type";
  if (model.moe_router_load_balancing_type.size() > 1)
    return builder.reject(key, "quantile_balancing balances alone", "use quantile_balancing");
  if (std::any_of(model.moe_aux_loss_coeff.begin(), model.moe_aux_loss_coeff.end(),
                  [](double c) { return c != 0; }))
    builder.reject("model.moe_aux_loss_coeff", "quantile_balancing balances without a loss",
                   "use --moe-aux-loss-coeff 0");
  if (model.moe_router_num_groups > 0)
    builder.reject(key, "quantile_balancing chooses among all experts, not among groups", "use aux_loss");
  if (model.moe_router_enable_expert_bias)
    builder.reject("model.moe_router_enable_expert_bias", "quantile_balancing moves a bias of its own",
                   "leave it out");
  if (model.moe_router_topk >= model.num_moe_experts)
    builder.reject(key, "quantile_balancing needs experts that a token does not go to", "use aux_loss");
  if (has_inactive_slots(config.parallel))
    builder.reject(key, "quantile_balancing needs replicas of one tensor-parallel size", "use aux_loss");
  if (const int64_t choices = config.train.micro_batch_size * model.seq_length * model.moe_router_topk;
      choices % model.num_moe_experts != 0 && builder.purpose == Purpose::training)
    builder.reject(
        key,
        fmt::format(
            "quantile_balancing needs the {} choices of a micro-batch to be a multiple of the {} experts",
            choices, model.num_moe_experts),
        "use aux_loss");
}

void capacity_fits(ConfigBuilder& builder) {
  const ModelConfig& model = builder.config.model;
  if (model.num_moe_experts == 0) return;
  if (model.moe_expert_capacity_factor && balances_by(model, "sinkhorn"))
    builder.reject("model.moe_expert_capacity_factor", "does not work with sinkhorn",
                   "use --moe-router-load-balancing-type aux_loss");
}

void dispatcher_fits(ConfigBuilder& builder) {
  const ModelConfig& model = builder.config.model;
  if (model.num_moe_experts == 0) return;
  const TokenDispatcher dispatcher = model.moe_token_dispatcher_type;
  if (model.moe_shared_expert_overlap && model.moe_shared_expert_intermediate_size == 0)
    builder.reject("model.moe_shared_expert_overlap", "there are no shared experts",
                   "give --moe-shared-expert-intermediate-size N");
  if (model.moe_shared_expert_overlap && dispatcher == TokenDispatcher::allgather)
    builder.reject("model.moe_shared_expert_overlap", "the allgather dispatcher cannot overlap",
                   "use --moe-token-dispatcher-type alltoall");
  for (const auto& [key, given] :
       {std::pair{"model.overlap_moe_expert_parallel_comm", model.overlap_moe_expert_parallel_comm},
        {"model.overlap_dispatch_backward_with_experts_wgrad",
         model.overlap_dispatch_backward_with_experts_wgrad}})
    if (given && dispatcher == TokenDispatcher::allgather)
      builder.reject(key, "the allgather dispatcher cannot overlap",
                     "use --moe-token-dispatcher-type alltoall");
  if (model.moe_shared_expert_gate && model.moe_shared_expert_intermediate_size == 0)
    builder.reject("model.moe_shared_expert_gate", "there are no shared experts",
                   "give --moe-shared-expert-intermediate-size N");
  if (dispatcher == TokenDispatcher::allgather && builder.config.parallel.variable_seq_lengths)
    builder.reject("model.moe_token_dispatcher_type",
                   "sequences of different lengths need another dispatcher",
                   "use --moe-token-dispatcher-type alltoall");
}

// A dense checkpoint has MLPs alone to make experts of.
void upcycling_fits(ConfigBuilder& builder) {
  const ModelConfig& model = builder.config.model;
  if (!model.moe_use_upcycling || model.num_moe_experts == 0) return;
  const char* key = "model.moe_use_upcycling";
  const CheckpointConfig& checkpoint = builder.config.checkpoint;
  if (builder.purpose != Purpose::forward && checkpoint.load.empty() &&
      checkpoint.pretrained_checkpoint.empty())
    builder.reject(key, "there is no dense checkpoint", "give --load DIR, or leave it out");
  if (model.num_moe_experts % model.moe_upcycling_granularity != 0)
    builder.reject("model.moe_upcycling_granularity",
                   fmt::format("does not divide num_moe_experts = {}", model.num_moe_experts),
                   fmt::format("use {}", common_divisors(std::array{model.num_moe_experts})));
  if (model.moe_latent_size > 0)
    builder.reject("model.moe_latent_size", "experts of a dense checkpoint are as wide as its layers",
                   "leave out --moe-latent-size or --moe-use-upcycling");
  if (model.moe_shared_expert_intermediate_size > 0)
    builder.reject("model.moe_shared_expert_intermediate_size", "a dense checkpoint has no shared experts",
                   "leave out --moe-shared-expert-intermediate-size or --moe-use-upcycling");
  if (model.mtp_num_layers > 0)
    builder.reject("model.mtp_num_layers", "MTP layers are not made of a dense checkpoint",
                   "leave out --mtp-num-layers or --moe-use-upcycling");
}

constexpr Rule kMoeRules[] = {
    {"topk_fits", "model.moe_router_* model.num_moe_experts model.moe_apply_probs_on_input",
     "experts per token suit experts and scores", topk_fits},
    {"groups_fit", "model.moe_router_* model.num_moe_experts",
     "groups of experts divide them and hold enough", groups_fit},
    {"aux_loss_fits", "model.moe_router_* model.moe_aux_loss_coeff model.num_moe_experts",
     "each kind of balancing has its coefficient", aux_loss_fits},
    {"quantiles_fit",
     "model.num_moe_experts model.moe_router_* model.moe_aux_loss_coeff model.seq_length "
     "train.micro_batch_size "
     "model.non_active_ranks_per_dp model.tp_spares",
     "quantile balancing is alone and finds whole numbers of tokens", quantiles_fit},
    {"capacity_fits",
     "model.num_moe_experts model.moe_expert_capacity_factor "
     "model.moe_router_load_balancing_type",
     "capacities suit the balancing", capacity_fits},
    {"dispatcher_fits",
     "model.num_moe_experts model.moe_token_dispatcher_type model.moe_shared_expert_overlap "
     "model.overlap_moe_expert_parallel_comm model.overlap_dispatch_backward_with_experts_wgrad "
     "model.moe_shared_expert_gate "
     "model.moe_shared_expert_intermediate_size model.variable_seq_lengths",
     "options of experts suit the dispatcher", dispatcher_fits},
    {"upcycling_fits",
     "model.num_moe_experts model.moe_use_upcycling model.moe_upcycling_granularity model.moe_latent_size "
     "model.moe_shared_expert_intermediate_size model.mtp_num_layers checkpoint.load "
     "checkpoint.pretrained_checkpoint",
     "a dense checkpoint can become the experts", upcycling_fits},
};

}  // namespace

std::span<const Rule> moe_rules() { return kMoeRules; }

}  // namespace megatron
