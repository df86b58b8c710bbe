#include "megatron/training/plan/launch_problems.h"

#include <algorithm>

#include "megatron/config/rules/rules.h"
#include "megatron/kernels/limits/gpu.h"
#include "megatron/kernels/limits/grid.h"
#include "megatron/models/parallel_setup.h"
#include "megatron/training/plan/plan.h"
#include "megatron/training/setup/run_settings.h"

namespace megatron {
namespace {

// A setting that leads to a refused launch; the refusal's own reason unless it says another.
struct Cause {
  const char* setting;
  std::string fix;
  std::string reason = {};
};
using Causes = std::vector<Cause>;

bool has_latent_heads(const ModelConfig& model) {
  return model.is_hybrid_model ? has_layers(model, '+') : model.multi_latent_attention;
}
bool has_plain_heads(const ModelConfig& model) {
  if (model.is_hybrid_model) return has_layers(model, '*');
  return !model.multi_latent_attention && !(has_delta_nets(model) && model.linear_attention_freq.is_null());
}

std::string or_cpu(std::string fix) { return fix + ", or --device cpu"; }

int64_t of_a_rank(const Config& config, int64_t whole) {
  return std::max<int64_t>(1, whole / config.parallel.tensor_model_parallel_size);
}

Causes head_causes(const Config& config, int64_t head_dim, const std::string& fix) {
  const ModelConfig& model = config.model;
  const int64_t keys = model.qk_head_dim + model.qk_pos_emb_head_dim;
  Causes causes;
  if (has_latent_heads(model)) {
    const int64_t widest = head_dim == 0 ? std::max(keys, model.v_head_dim) : head_dim;
    if (widest == keys)
      causes.push_back({"model.qk_head_dim", fix});
    else if (widest == model.v_head_dim)
      causes.push_back({"model.v_head_dim", fix});
  }
  if (has_plain_heads(model) && (head_dim == 0 || head_dim == model.kv_channels))
    causes.push_back({"model.kv_channels", fix});
  return causes;
}

Causes norm_causes(const Config& config, const Refusal& refusal) {
  const ModelConfig& model = config.model;
  const std::string fix = or_cpu("use a smaller width");
  Causes causes;
  if (model.hidden_size == refusal.got) causes.push_back({"model.hidden_size", fix});
  if (has_latent_heads(model)) {
    if (model.kv_lora_rank == refusal.got) causes.push_back({"model.kv_lora_rank", fix});
    if (model.q_lora_rank == refusal.got) causes.push_back({"model.q_lora_rank", fix});
  }
  if (model.qk_layernorm_full_width && model.qk_layernorm && model.hidden_size != refusal.got)
    causes.push_back({"model.qk_layernorm_full_width", fix, refusal.reason + " of all heads at once"});
  return causes;
}

Causes gated_norm_causes(const Config& config, int64_t width) {
  const ModelConfig& model = config.model;
  Causes causes;
  const int64_t inner = of_a_rank(config, model.mamba_num_heads) * model.mamba_head_dim;
  if (has_layers(model, 'M') && model.mamba_norm_full_width && width == inner)
    causes.push_back({"model.mamba_norm_full_width", or_cpu("use more tensor-parallel ranks")});
  if (has_layers(model, 'M') && !model.mamba_norm_full_width &&
      width == inner / of_a_rank(config, model.mamba_num_groups))
    causes.push_back({"model.mamba_num_groups", or_cpu("use more groups")});
  if (has_delta_nets(model) && width == model.linear_value_head_dim)
    causes.push_back({"model.linear_value_head_dim", or_cpu("use narrower heads")});
  return causes;
}

constexpr const char* kTokens = "model.seq_length";

Cause token_cause(std::string reason) {
  return {kTokens, or_cpu("use a smaller --micro-batch-size or more context-parallel ranks"),
          std::move(reason)};
}

Cause fp8_row_cause(const Config& config, const Refusal& refusal) {
  const int64_t columns = of_a_rank(config, config.model.ffn_hidden_size);
  if (refusal.got == columns || refusal.got == 2 * columns)
    return {"model.ffn_hidden_size", or_cpu("use a smaller number or more ranks"),
            fmt::format("the CUDA kernels take {} columns of a matrix in fp8, not {}", limits::kTileRows,
                        refusal.got)};
  return token_cause(
      fmt::format("{} tokens of a micro-batch on a rank are more than a launch of the CUDA "
                  "kernels takes in fp8",
                  refusal.got));
}

Causes causes_of(const Config& config, const Refusal& refusal) {
  const ModelConfig& model = config.model;
  const std::string fewer = or_cpu("use a smaller number or more ranks");
  switch (refusal.limit) {
    case LaunchLimit::GpuGeneration:
      return {{"run.device", "use --device cpu, or hide it by CUDA_VISIBLE_DEVICES"}};
    case LaunchLimit::Fp8Generation:
      return {{"model.fp8", "leave it out"}};
    case LaunchLimit::Fp8Blocks:
      return {{"model.fp8_recipe", "use --fp8-recipe tensorwise"}};
    case LaunchLimit::Fp8Experts:
      return {{"model.fp8", "leave it out"}};
    case LaunchLimit::HeadDim:
      return head_causes(config, refusal.got, or_cpu("use narrower heads"));
    case LaunchLimit::AttentionMemory:
      return head_causes(config, 0, or_cpu("use narrower heads or numbers"));
    case LaunchLimit::ConvolutionWidth:
      return {};  // settings have that range on every device
    case LaunchLimit::DeltaKeys:
      return {{"model.linear_key_head_dim", or_cpu("use narrower heads")}};
    case LaunchLimit::ScanChunk:
      return {{"model.mamba_chunk_size", or_cpu("use 128 or 256, which tensor cores take")}};
    case LaunchLimit::ScanState:
      return {
          {model.mamba_head_dim > model.mamba_state_dim ? "model.mamba_head_dim" : "model.mamba_state_dim",
           or_cpu("use smaller states")}};
    case LaunchLimit::DecodedState:
      return {{"model.mamba_state_dim", or_cpu("use smaller states")}};
    case LaunchLimit::NormRow:
      return norm_causes(config, refusal);
    case LaunchLimit::GatedNormRow:
      return gated_norm_causes(config, refusal.got);
    case LaunchLimit::Experts:
      return {{"model.num_moe_experts", or_cpu("use fewer experts"),
               refusal.reason + (config.parallel.expert_tensor_parallel_size > 1
                                     ? ", each tensor-parallel part counted"
                                     : "")}};
    case LaunchLimit::AttentionHeads:
      return {{"model.num_attention_heads", fewer}};
    case LaunchLimit::ScanHeads:
      return {{"model.mamba_num_heads", fewer}};
    case LaunchLimit::DeltaHeads:
      return {{"model.linear_num_value_heads", fewer}};
    case LaunchLimit::Sequences:
      return {{"train.micro_batch_size", fewer}};
    case LaunchLimit::ExpertColumns:
      return {{"model.moe_ffn_hidden_size", fewer}};
    case LaunchLimit::Fp8Rows:
      return {fp8_row_cause(config, refusal)};
    case LaunchLimit::Logits:
      return {{"model.vocab_size", fewer}};
    case LaunchLimit::Tokens:
      return {token_cause(refusal.reason)};
    case LaunchLimit::SharingRanks:
      return {{"run.ranks", or_cpu("start more processes")}};
  }
  return {};
}

}  // namespace

std::vector<Problem> launch_problems(const Resolved& resolved, std::span<const Refusal> refusals) {
  const Config& config = resolved.config;
  std::vector<Refusal> sorted(refusals.begin(), refusals.end());
  std::stable_sort(sorted.begin(), sorted.end(), [](const Refusal& a, const Refusal& b) {
    return a.limit != b.limit ? a.limit < b.limit : a.got > b.got;
  });
  std::vector<Problem> problems;
  std::vector<std::pair<LaunchLimit, std::string>> told;
  for (const Refusal& refusal : sorted) {
    Causes causes = causes_of(config, refusal);
    if (causes.empty()) causes.push_back({"run.device", "use --device cpu"});
    for (Cause& cause : causes) {
      // Lengths of recorded batches are not known yet; the kernels look at them.
      if (cause.setting == kTokens && !config.dataset.replay.empty()) continue;
      const std::pair<LaunchLimit, std::string> key{refusal.limit, cause.setting};
      if (std::find(told.begin(), told.end(), key) != told.end()) continue;
      told.push_back(key);
      problems.push_back(problem_of(config, resolved.origins, cause.setting,
                                    cause.reason.empty() ? refusal.reason : std::move(cause.reason),
                                    std::move(cause.fix)));
    }
  }
  return problems;
}

void check_launches(const Resolved& resolved, std::span<const Refusal> refusals) {
  std::vector<Problem> problems = launch_problems(resolved, refusals);
  if (!problems.empty()) throw Refused(std::move(problems));
}

void check_gpus(const Resolved& resolved) {
  std::vector<Refusal> refusals;
  for (const GpuFacts& gpu : resolved.gpus)
    if (const auto refusal = refuse_gpu(gpu)) refusals.push_back(*refusal);
  if (!resolved.gpus.empty())
    if (const auto refusal = refuse_sharing_ranks(resolved.config.run.ranks)) refusals.push_back(*refusal);
  check_launches(resolved, refusals);
}

void check_forward_launches(const Resolved& resolved, int64_t world) {
  if (resolved.gpus.empty()) return;
  check_gpus(resolved);
  const Config& config = resolved.config;
  check_launches(resolved,
                 forward_refusals(config, parallel_sizes(config, world), model_dtype(config), resolved.gpus));
}

}  // namespace megatron
