#include "megatron/training/log/run_summary.h"

#include <fmt/format.h>

#include <vector>

#include "megatron/base/counted.h"
#include "megatron/training/plan/flops.h"
#include "megatron/training/setup/run_settings.h"
#include "megatron/transformer/embedding.h"

namespace megatron {

std::string count_text(double count) {
  if (count >= 1e12) return fmt::format("{:.2f} T", count / 1e12);
  if (count >= 1e9) return fmt::format("{:.2f} B", count / 1e9);
  if (count >= 1e6) return fmt::format("{:.1f} M", count / 1e6);
  return fmt::format("{:.1f} k", count / 1e3);
}

namespace {

std::string attention_text(const ModelConfig& model) {
  if (model.multi_latent_attention)
    return fmt::format("{} heads of latent attention, rank {}", model.num_attention_heads,
                       model.kv_lora_rank);
  const int64_t groups = model.num_query_groups;
  return fmt::format(
      "{} heads of {}{}", model.num_attention_heads, model.kv_channels,
      groups > 0 && groups < model.num_attention_heads ? fmt::format(" on {} key-value heads", groups) : "");
}

std::string model_text(const ModelConfig& model, const RunPlan& plan) {
  const int64_t padded = padded_vocab_size(model, plan.sizes.tp);
  return fmt::format("{} parameters: {} of {}, {}, vocabulary {}{}",
                     count_text(static_cast<double>(plan.parameters)), counted(model.num_layers, "layer"),
                     model.hidden_size, attention_text(model), model.vocab_size,
                     padded == model.vocab_size ? "" : fmt::format(" (padded to {})", padded));
}

std::string feed_forward_text(const ModelConfig& model) {
  std::string text = fmt::format("{} {}{}", model.ffn_hidden_size, model.gated_linear_unit ? "gated " : "",
                                 names(Activation{})[static_cast<size_t>(model.activation_func)]);
  if (model.num_moe_experts > 0)
    text = fmt::format("{} experts of {}, {} to a token{}", model.num_moe_experts,
                       model.moe_ffn_hidden_size ? model.moe_ffn_hidden_size : model.ffn_hidden_size,
                       model.moe_router_topk,
                       model.moe_shared_expert_intermediate_size > 0
                           ? fmt::format(", {} shared", model.moe_shared_expert_intermediate_size)
                           : "");
  if (model.is_hybrid_model) text += fmt::format("; pattern {}", model.hybrid_layer_pattern);
  if (model.mtp_num_layers > 0) text += "; " + counted(model.mtp_num_layers, "MTP layer");
  return text;
}

std::string number_text(const Config& config) {
  std::string text(name_of(model_dtype(config)));
  if (config.precision.fp8 != Fp8Format::none)
    text += fmt::format(" with fp8 ({}, {})", names(Fp8Format{})[static_cast<size_t>(config.precision.fp8)],
                        names(Fp8Recipe{})[static_cast<size_t>(config.precision.fp8_recipe)]);
  if (!config.precision.te_precision_config_file.empty())
    text += fmt::format(", modules as {} says", config.precision.te_precision_config_file);
  return text;
}

// The sizes of the groups under their names.
std::string layout_table(const Config& config, const RunPlan& plan) {
  const ParallelSizes& sizes = plan.sizes;
  std::vector<std::pair<std::string, int>> columns = {
      {"ranks", sizes.world}, {config.parallel.sequence_parallel ? "tp+sp" : "tp", sizes.tp},
      {"pp", sizes.pp},       {"vpp", plan.pipeline.vpp},
      {"cp", sizes.cp},       {"dp", sizes.dp()}};
  if (config.model.num_moe_experts > 0)
    columns.insert(columns.end(), {{"ep", sizes.ep}, {"etp", sizes.expert_tp()}, {"edp", sizes.edp()}});
  std::string names, figures;
  for (const auto& [name, size] : columns) {
    names += fmt::format("{:>7}", name);
    figures += fmt::format("{:>7}", size);
  }
  return fmt::format("{}\n         {}", names, figures);
}

}  // namespace

std::string run_summary(const Config& config, const RunPlan& plan, const std::string& device) {
  const int64_t batch = config.train.global_batch_size, tokens = batch * config.model.seq_length,
                passes = batch / (config.train.micro_batch_size * plan.sizes.dp());
  const double flops = static_cast<double>(tokens) *
                       model_flops_per_token(config.model, config.model.seq_length, plan.sizes.tp);
  std::string text = fmt::format("model    {}\n", model_text(config.model, plan));
  text += fmt::format("         feed-forward {}\n", feed_forward_text(config.model));
  text += fmt::format("step     {} of {} tokens in {} of {} a replica, {:.4g} TFLOP\n",
                      counted(batch, "sequence"), config.model.seq_length, counted(passes, "micro-batch"),
                      config.train.micro_batch_size, flops / 1e12);
  text += fmt::format("kernels  {} on {}\n", number_text(config), device);
  text += fmt::format("layout   {}\n", layout_table(config, plan));
  return text + plan.memory_table();
}

}  // namespace megatron
