#include "megatron/transformer/moe/moe_layer.h"

#include "megatron/autograd/recompute.h"
#include "megatron/nn/elastic_widths.h"
#include "megatron/ops/elementwise.h"
#include "megatron/parallel/expert/row_collectives.h"
#include "megatron/parallel/tensor/mappings.h"
#include "megatron/transformer/initializers.h"
#include "megatron/transformer/layer_pattern.h"

namespace megatron {

MoeLayer::MoeLayer(const std::string& name, int64_t layer, const ModelConfig& config,
                   const ModelParallel& parallel)
    : parallel_(parallel),
      overlap_shared_(config.moe_shared_expert_overlap || config.overlap_moe_expert_parallel_comm),
      probs_on_input_(config.moe_apply_probs_on_input),
      router_(name + ".router", layer, config, parallel),
      experts_(name + ".experts.experts", config, parallel.expert),
      dispatcher_(config.num_moe_experts, parallel.expert,
                  {.all_to_all = config.moe_token_dispatcher_type != TokenDispatcher::allgather,
                   .expert_of_row = experts_.has_biases(),
                   .fill_backward = fills_exchanges(config)}) {
  if (config.moe_latent_size > 0) {
    into_latent_ = std::make_unique<LatentProjection>(name + ".fc1_latent_proj", config.hidden_size,
                                                      config.moe_latent_size, input_initializer(config),
                                                      config, parallel.tensor);
    out_of_latent_ = std::make_unique<LatentProjection>(name + ".fc2_latent_proj", config.moe_latent_size,
                                                        config.hidden_size, output_initializer(config),
                                                        config, parallel.tensor);
  }
  if (config.moe_shared_expert_intermediate_size > 0)
    shared_ = std::make_unique<SharedExperts>(name + ".shared_experts", config, parallel.tensor);
}

void MoeLayer::set_activation_plan(const ActivationPlan& plan) {
  plan_ = plan;
  if (plan.fixed_shapes) dispatcher_.fix_shapes();
  if (shared_) shared_->set_activation_plan(plan);
}

MicrobatchShare MoeLayer::share_of(const Tensor& x, const SeqInfo& seq) const {
  const TensorParallel& tp = parallel_.tensor;
  MicrobatchShare share{.tokens = x.size(0),
                        .sequences = seq.batch,
                        .group = parallel_.expert.microbatch,
                        .parts = parallel_.context.group.size()};
  if (tp.splits_tokens()) share.tokens *= tp.size();
  if (tp.pads_tokens()) share.tokens = seq.positions.size(0);
  RowShare own = share_of_rows(share.tokens, tp.group);
  share.begin = own.begin;
  share.rows = own.rows;
  share.max_rows = own.share;
  return share;
}

Tensor MoeLayer::run_shared(RankContext& ctx, const Tensor& x, const RecomputeFn& recompute_input) {
  if (!plan_.shared_experts) return shared_->forward(ctx, x, recompute_input);
  return recompute(ctx, {&x, 1}, [this](RankContext& c, std::span<const Tensor> inputs) {
    return std::vector<Tensor>{shared_->forward(c, inputs[0])};
  })[0];
}

Tensor MoeLayer::forward(RankContext& ctx, const Tensor& x, const SeqInfo& seq,
                         const RecomputeFn& recompute_input, HostOffload* host) {
  const TensorParallel& tp = parallel_.tensor;
  // Where every TP rank has all tokens, each sees to its share of them.
  const bool divide = tp.size() > 1 && !tp.splits_tokens();
  MicrobatchShare share = share_of(x, seq);
  Tensor own = divide ? take_rows(ctx, x, tp.group) : x;
  if (tp.pads_tokens()) own = with_rows(ctx, x, share.rows);
  Router::Result routed = router_.forward(ctx, own, seq, share);
  Routing& routing = routed.routing;
  if (probs_on_input_) {  // one choice per token
    own = ops::mul(ctx, own, ops::cast(ctx, routing.probs, own.dtype()));
    routing.probs = {};
  }

  Tensor shared;
  auto with_shared = [&] {
    if (shared_) shared = run_shared(ctx, x, recompute_input);
  };
  if (!overlap_shared_) with_shared();
  if (into_latent_) own = into_latent_->forward(ctx, own);
  dispatcher_.align_rows(experts_.row_alignment());
  Dispatched sent = dispatcher_.dispatch(ctx, own, routing, share.max_rows,
                                         overlap_shared_ ? std::function<void()>(with_shared) : nullptr);
  const Tensor width = seq.elastic ? seq.elastic->ffn : Tensor{};
  Tensor y = sent.combine(ctx, experts_.forward(ctx, sent, plan_, host, width));
  if (out_of_latent_) y = out_of_latent_->forward(ctx, y);
  if (divide) y = join_rows(ctx, y, share.tokens, tp.group);
  if (tp.pads_tokens()) y = with_rows(ctx, y, x.size(0));
  if (shared) y = ops::add(ctx, y, shared);
  return routed.loss ? attach_aux_loss(ctx, y, routed.loss, seq.aux_loss_weight) : y;
}

void MoeLayer::visit(const ParameterVisitor& visitor) {
  router_.visit(visitor);
  if (into_latent_) into_latent_->visit(visitor);
  experts_.visit(visitor);
  if (out_of_latent_) out_of_latent_->visit(visitor);
  if (shared_) shared_->visit(visitor);
}

}  // namespace megatron
