#include "megatron/bridge/megatron/names.h"

#include <charconv>

namespace megatron {
namespace {

struct Rename {
  std::string_view theirs, ours;  // how a name within a layer begins
};

// Norms that Transformer Engine's layers hold within the linear layer that follows.
constexpr Rename kFusedNorms[] = {
    {"self_attention.linear_qkv.layer_norm_", "input_layernorm."},
    {"self_attention.in_proj.layer_norm_", "input_layernorm."},
    {"self_attention.linear_q_up_proj.layer_norm_", "self_attention.q_layernorm."},
    {"self_attention.linear_kv_up_proj.layer_norm_", "self_attention.kv_layernorm."},
    {"mlp.linear_fc1.layer_norm_", "pre_mlp_layernorm."},
    {"mixer.in_proj.layer_norm_", "norm."},
};

constexpr std::string_view kMambaRows[] = {"z", "x", "B", "C", "dt"};
constexpr std::string_view kDeltaRows[] = {"query", "key", "value", "z", "beta", "alpha"};

// Takes a number and a dot off the front.
std::optional<int64_t> take_number(std::string_view& text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const auto used = static_cast<size_t>(end - text.data());
  if (error != std::errc() || value < 0 || used >= text.size() || text[used] != '.') return {};
  text.remove_prefix(used + 1);
  return value;
}

bool take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

std::string our_layer_name(std::string_view name) {
  for (const Rename& rename : kFusedNorms)
    if (name.starts_with(rename.theirs))
      return std::string(rename.ours) + std::string(name.substr(rename.theirs.size()));
  return std::string(name);
}

// Where the name within a layer begins; npos where it is no layer's.
size_t layer_name_at(std::string_view name) {
  const size_t layers = name.find("layers.");
  if (layers == std::string_view::npos || (layers > 0 && name[layers - 1] != '.'))
    return std::string_view::npos;
  return layers + 7;
}

// Takes ".z" or the like off the end of a name whose rows are stored apart.
int take_part(std::string& name) {
  if (name.ends_with("_w") || name.ends_with("_v")) {  // gate and up of one expert
    const int part = name.back() == 'v';
    name.resize(name.size() - 2);
    return part;
  }
  const size_t dot = name.rfind('.');
  if (dot == std::string::npos) return 0;
  const KeyParts parts = key_parts(std::string_view(name).substr(0, dot));
  for (int i = 0; i < parts.count; ++i) {
    if (name.substr(dot + 1) != parts.names[i]) continue;
    name.resize(dot);
    return i;
  }
  return 0;
}

// Takes the number off "mlp.experts.experts.3.linear_fc1.weight".
std::optional<int64_t> take_expert(std::string& name) {
  constexpr std::string_view kStack = "mlp.experts.experts.";
  const size_t at = name.find(kStack);
  if (at == std::string::npos) return {};
  std::string_view rest = std::string_view(name).substr(at + kStack.size());
  const size_t before = rest.size();
  const std::optional<int64_t> expert = take_number(rest);
  if (expert) name.erase(at + kStack.size(), before - rest.size());
  return expert;
}

}  // namespace

KeyParts key_parts(std::string_view ours) {
  const auto is = [&](std::string_view end) { return ours.ends_with(end); };
  if (is("mixer.in_proj.weight")) return {kMambaRows, 5};
  if (is("mixer.conv1d.weight") || is("mixer.conv1d.bias")) return {kMambaRows + 1, 3};
  if (is("self_attention.in_proj.weight")) return {kDeltaRows, 6};
  if (is("self_attention.conv1d.weight") || is("self_attention.conv1d.bias")) return {kDeltaRows, 3};
  return {};
}

std::string our_name(std::string_view theirs) {
  constexpr std::string_view kHybridNorm = "decoder.final_norm.";
  if (theirs.starts_with(kHybridNorm))
    return "decoder.final_layernorm." + std::string(theirs.substr(kHybridNorm.size()));
  const size_t at = layer_name_at(theirs);
  if (at == std::string_view::npos) return std::string(theirs);
  std::string_view rest = theirs.substr(at);
  const std::optional<int64_t> number = take_number(rest);
  std::string name(theirs.substr(0, at));
  if (number) name += std::to_string(*number) + ".";
  // A prediction layer holds one like the decoder's, whose name has changed over time.
  if (take(rest, "transformer_layer.") || take(rest, "mtp_model_layer.")) name += "mtp_model_layer.";
  return name + our_layer_name(rest);
}

std::optional<MegatronKey> megatron_key(std::string_view key) {
  MegatronKey found;
  if (std::string_view rest = key; take(rest, "chained_") && take_number(rest)) key = rest;
  if (key.starts_with("optimizer.")) {
    if (!take(key, "optimizer.state.")) return {};
    const size_t dot = key.find('.');
    if (dot == std::string_view::npos) return {};
    found.state = key.substr(0, dot);
    if (found.state == "fp32_param" || found.state == "param") found.state = "master";
    key.remove_prefix(dot + 1);
  }
  std::string name = our_name(key);
  found.part = take_part(name);
  found.expert = take_expert(name);
  const size_t at = layer_name_at(name);
  std::string_view rest = at == std::string::npos ? std::string_view() : std::string_view(name).substr(at);
  found.stacked = at != std::string::npos && !take_number(rest);
  found.before = found.stacked ? name.substr(0, at) : name;
  if (found.stacked) found.after = "." + name.substr(at);
  return found;
}

StoredKey stored_key(std::string_view ours, bool stacked,
                     const std::function<bool(std::string_view)>& holds) {
  const size_t at = layer_name_at(ours);
  if (at == std::string_view::npos) return {std::string(ours)};
  std::string_view rest = ours.substr(at);
  StoredKey stored;
  stored.layer = take_number(rest).value_or(0);
  stored.stacked = stacked && ours.starts_with("decoder.");
  stored.key = std::string(ours.substr(0, at));
  if (!stored.stacked) stored.key += std::to_string(stored.layer) + ".";
  if (take(rest, "mtp_model_layer.")) stored.key += "mtp_model_layer.";
  const std::string_view layer = ours.substr(0, ours.size() - rest.size());
  constexpr std::string_view kNorm = ".layer_norm_";
  for (const Rename& rename : kFusedNorms) {
    if (!rest.starts_with(rename.ours)) continue;
    const std::string_view linear = rename.theirs.substr(0, rename.theirs.size() - kNorm.size());
    if (!holds(std::string(layer) + std::string(linear) + ".weight")) continue;
    stored.key += rename.theirs;
    stored.key += rest.substr(rename.ours.size());
    return stored;
  }
  stored.key += rest;
  return stored;
}

}  // namespace megatron
