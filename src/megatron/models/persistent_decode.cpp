#include "megatron/models/persistent_decode.h"

#include <cmath>
#include <map>

#include "megatron/transformer/layer_pattern.h"

namespace megatron {
namespace {

// What acts without a parameter of its own, and the kernel does not know.
bool is_plain(const ModelConfig& config) {
  const bool swiglu = config.gated_linear_unit && config.activation_func == Activation::silu &&
                      !config.activation_func_clamp_value && config.glu_linear_offset == 0;
  const bool scores = !config.qk_l2_norm && config.softmax_type == SoftmaxType::vanilla &&
                      !config.attn_logit_softcapping && !config.attention_output_gate &&
                      !config.query_scaling_beta;
  const bool stream = config.normalization == Normalization::rms_norm && config.pre_layernorm &&
                      !config.layernorm_after_residual && !config.fp32_residual_connection &&
                      !config.parallel_residual;
  const bool ends = !config.embedding_multiplier && !config.final_logit_softcapping &&
                    !config.output_multiplier && !config.use_mup;
  bool alike = config.heterogeneous_layers_config_encoded_json.empty();
  for (int64_t layer = 0; layer < config.num_layers; ++layer)
    alike = alike && mixer_kind(config, layer) == MixerKind::attention &&
            feed_forward_kind(config, layer) == FeedForwardKind::mlp && has_rope(config, layer) &&
            !has_window(config, layer);
  return swiglu && scores && stream && ends && alike;
}

// Values of the model's parameters by name; none where one is more than its value.
std::map<std::string, Tensor> values_of(RankContext& ctx, ModelChunk& chunk) {
  std::map<std::string, Tensor> values;
  for (Parameter* parameter : chunk.parameters()) {
    if (parameter->fp8 || parameter->adapter || parameter->scale || parameter->sharded) return {};
    values.emplace(parameter->name, parameter->get(ctx).value);
  }
  return values;
}

}  // namespace

Tensor decode_persistently(RankContext& ctx, Model& model, const Tensor& ids, const SeqInfo& seq) {
  const ModelConfig& config = model.config();
  if (!ctx.device.is_cuda() || ids.numel() > kMaxDecodeRows || ctx.batch_invariant ||
      model.dtype() != DType::BF16 || model.decoders().size() != 1 || !is_plain(config))
    return {};
  std::map<std::string, Tensor> values = values_of(ctx, model.decoder(0));
  size_t used = 0;
  const auto value = [&](const std::string& name) {
    const auto found = values.find(name);
    used += found != values.end() ? 1 : 0;
    return found != values.end() ? found->second : Tensor{};
  };
  std::vector<DecodeLayer> layers;
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const std::string name = "decoder.layers." + std::to_string(i);
    const PagedCache::Pages& pages = seq.cache->pages(i);
    if (pages.keys.dtype() != DType::BF16) return {};
    layers.push_back({.input_norm = value(name + ".input_layernorm.weight"),
                      .qkv = value(name + ".self_attention.linear_qkv.weight"),
                      .projection = value(name + ".self_attention.linear_proj.weight"),
                      .mlp_norm = value(name + ".pre_mlp_layernorm.weight"),
                      .fc1 = value(name + ".mlp.linear_fc1.weight"),
                      .fc2 = value(name + ".mlp.linear_fc2.weight"),
                      .keys = pages.keys,
                      .values = pages.values});
  }
  const Tensor final_norm = value("decoder.final_layernorm.weight"),
               table = value("embedding.word_embeddings.weight"),
               output = config.share_embeddings_and_output_weights ? table : value("output_layer.weight");
  // A parameter more would be one that the kernel leaves out.
  if (!output || used != values.size()) return {};
  const SequenceBatch& batch = *seq.sequences;
  const Tensor logits = ctx.empty({ids.numel(), output.size(0)}, DType::BF16);
  const DecodeLayersArgs args{
      .layers = layers,
      .ids = ids,
      .table = table,
      .final_norm = final_norm,
      .head = output,
      .cos = seq.rope_cos,
      .sin = seq.rope_sin,
      .interleaved = config.rotary_interleaved,
      .slots = batch.slots,
      .blocks = batch.blocks,
      .key_lengths = batch.key_lengths,
      .block_size = batch.block_size,
      .max_keys = batch.max_keys,
      .heads = config.num_attention_heads,
      .scale = config.softmax_scale.value_or(1.0 / std::sqrt(static_cast<double>(config.kv_channels))),
      .epsilon = config.layernorm_epsilon,
      .zero_centered = config.layernorm_zero_centered_gamma,
      .logits = logits};
  return ctx.kernels->decode_layers(ctx.kernel_context(), args) ? logits : Tensor{};
}

}  // namespace megatron
