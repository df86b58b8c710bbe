#pragma once

#include "megatron/bridge/family.h"

// What most decoder families share: the translation of their configuration, and the rows of their weights.
namespace megatron {

// Pre-norm RMSNorm, rotary positions, a gated MLP, no biases but where the files have them: the keys that
// nearly all families write.
ModelConfig decoder_config(const HfSource& source);

// A file's vocabulary is what it is: as much padding as it already has, none on top.
void fit_vocabulary(ModelConfig& model);

// Linear, llama3 or YaRN scaling, base and rotated part. `default_theta` where the file has none.
void read_rope(const HfRope& rope, const HfConfig& config, double default_theta, ModelConfig& model);

// A window on the layers that `by_default` marks, or that layer_types names.
void read_windows(const HfConfig& config, ModelConfig& model,
                  bool (*by_default)(const HfConfig&, int64_t layer));
inline bool every_layer(const HfConfig&, int64_t) { return true; }  // has one

Activation read_activation(std::string_view name);

std::vector<WeightRule> operator+(std::vector<WeightRule> a, const std::vector<WeightRule>& b);

std::vector<WeightRule> embedding_rules();  // embedding, final norm, head
std::vector<WeightRule> attention_rules();  // input norm, q, k, v and o projections with biases
std::vector<WeightRule> qk_norm_rules();
std::vector<WeightRule> mlp_rules();  // its norm, gate, up and down with biases
// Norms after attention and MLP, by the names that the family gives them, and the one before the MLP.
std::vector<WeightRule> sandwich_rules(const char* after_attention, const char* before_mlp,
                                       const char* after_mlp);

// Qwen's MTP layer stands apart from the decoder's layers, whose rules what it contains follows.
std::vector<WeightRule> qwen_mtp_rules(const std::vector<WeightRule>& rules);
void read_qwen_mtp(const HfSource& source, ModelConfig& model);

}  // namespace megatron
