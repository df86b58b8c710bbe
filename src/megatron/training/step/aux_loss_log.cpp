#include "megatron/training/step/aux_loss_log.h"

#include <algorithm>

#include "megatron/models/whole_model.h"
#include "megatron/transformer/layer_pattern.h"

namespace megatron {
namespace {

// Megatron-LM's names.
std::string logged_name(const std::string& kind) {
  if (kind == "aux_loss") return "load_balancing_loss";
  if (kind == "seq_aux_loss") return "seq_load_balancing_loss";
  if (kind == "global_aux_loss") return "global_load_balancing_loss";
  if (kind == "indexer_loss") return "indexer loss";
  if (kind == "budget_loss") return "param loss";
  return kind;
}

int64_t all_layers(const ModelConfig& model) {
  if (is_encoder_decoder(model)) return model.encoder_num_layers + model.decoder_num_layers;
  const int64_t depths = model.mtp_use_repeated_layer ? 1 : model.mtp_num_layers;
  return model.num_layers + (model.mtp_num_layers > 0 ? depths * mtp_inner_layers(model) : 0);
}

}  // namespace

bool reports_budget_loss(const ElasticConfig& config) {
  return config.flextron && !config.disable_budget && !config.freeze_router;
}

AuxLossLog::AuxLossLog(const ModelConfig& model, bool budgets) : per_layer_(model.moe_per_layer_logging) {
  if (model.num_moe_experts == 0 && model.dsa_indexer_loss_coeff == 0 && !budgets) return;
  const int64_t count = all_layers(model);
  const ModelConfig longer = continue_patterns(model, count);
  std::vector<int64_t> with_experts, with_indexer;
  for (int64_t layer = 0; layer < count; ++layer) {
    if (has_experts(longer, layer)) with_experts.push_back(layer);
    if (model.dsa_indexer_loss_coeff > 0 && has_indexer(longer, layer)) with_indexer.push_back(layer);
  }
  for (size_t i = 0; i < model.moe_router_load_balancing_type.size(); ++i) {
    const std::string& kind = model.moe_router_load_balancing_type[i];
    const double coefficient = i < model.moe_aux_loss_coeff.size() ? model.moe_aux_loss_coeff[i] : 0;
    if (kind != "none" && kind != "sinkhorn" && coefficient != 0) add(kind, coefficient, with_experts);
  }
  if (model.moe_z_loss_coeff != 0) add("z_loss", model.moe_z_loss_coeff, with_experts);
  const size_t routers = kinds_.size();
  if (model.attends_sparsely()) add("indexer_loss", 1, with_indexer);
  if (budgets) add("budget_loss", 1, {0});
  for (const Kind& kind : kinds_) names_.push_back(logged_name(kind.kind));
  if (!per_layer_) return;
  for (size_t i = 0; i < routers; ++i)
    for (int64_t layer : kinds_[i].layers)
      names_.push_back(fmt::format("moe/{}_layer_{}", logged_name(kinds_[i].kind), layer + 1));
}

void AuxLossLog::add(std::string kind, double coefficient, const std::vector<int64_t>& layers) {
  if (layers.empty()) return;
  kinds_.push_back({std::move(kind), coefficient, layers, places_});
  places_ += static_cast<int64_t>(layers.size());
}

Tensor AuxLossLog::means(RankContext& ctx, std::span<ModelChunk* const> chunks,
                         const ParallelContext& parallel, int64_t batches) {
  if (names_.empty()) return {};
  // Each rank has its part of the losses of its own layers.
  Tensor each = ctx.zeros({places_}, DType::F64);
  for (ModelChunk* chunk : chunks)
    for (const AuxLossSum& loss : chunk->take_losses()) {
      const auto kind =
          std::find_if(kinds_.begin(), kinds_.end(), [&](const Kind& own) { return own.kind == loss.kind; });
      require(kind != kinds_.end(), "layer {}: {} is not expected", loss.layer, loss.kind);
      const auto layer = std::find(kind->layers.begin(), kind->layers.end(), loss.layer);
      require(layer != kind->layers.end(), "layer {}: {} is not expected there", loss.layer, loss.kind);
      const int64_t at = kind->first + (layer - kind->layers.begin());
      const Tensor place = each.slice(0, at, at + 1);
      ctx.kernels->axpby(ctx.kernel_context(),
                         {.alpha = 1 / (kind->coefficient * static_cast<double>(batches)),
                          .a = loss.sum,
                          .beta = 1,
                          .b = place,
                          .out = place});
    }
  parallel.group(Axis::tp).all_reduce(each).wait();
  parallel.sum_over_replicas(each, Axis::dp_cp);
  parallel.group(Axis::pp).all_reduce(each).wait();
  Tensor all = ctx.zeros({static_cast<int64_t>(names_.size())}, DType::F64);
  const auto kinds = static_cast<int64_t>(kinds_.size());
  for (int64_t i = 0; i < kinds; ++i) {
    const Kind& kind = kinds_[static_cast<size_t>(i)];
    const auto layers = static_cast<int64_t>(kind.layers.size());
    ctx.kernels->reduce(ctx.kernel_context(), {.kind = Reduction::Mean,
                                               .x = each.slice(0, kind.first, kind.first + layers),
                                               .out = all.slice(0, i, i + 1),
                                               .outer = 1,
                                               .n = layers});
  }
  if (const int64_t told = all.numel() - kinds; told > 0)  // the routers' kinds come first
    ctx.kernels->copy(ctx.kernel_context(), {each.slice(0, 0, told), all.slice(0, kinds, all.numel())});
  return all;
}

}  // namespace megatron
