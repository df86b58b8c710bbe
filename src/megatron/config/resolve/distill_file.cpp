#include "megatron/config/resolve/distill_file.h"

#include <fmt/ranges.h>

#include <array>

#include "megatron/base/error.h"
#include "megatron/base/nearest.h"
#include "megatron/base/text_file.h"
#include "megatron/config/rules/rules.h"
#include "megatron/config/schema/value.h"
#include "megatron/config/sources/yaml.h"

namespace megatron {
namespace {

constexpr const char* kFile = "distill.export_kd_cfg";
constexpr std::array kKeys{"skip_lm_loss", "kd_loss_scale", "logit_kl_temperature"};

// Logits are the only outputs of the two models that are compared.
void check_layers(ConfigBuilder& builder, const Json& file) {
  const Json heads(Json::Array{Json("output_layer"), Json("output_layer")});
  if (const Json* layers = file.find("logit_layers"); layers && !layers->is_null() && !(*layers == heads))
    builder.reject(kFile, fmt::format("its logit_layers are {}", show_value(*layers)),
                   "use [output_layer, output_layer], or leave logit_layers out");
  const Json* pairs = file.find("intermediate_layer_pairs");
  if (pairs && !pairs->is_null() && !(pairs->is_array() && pairs->as_array().empty()))
    builder.reject(kFile, "its intermediate_layer_pairs compare layers, but only logits are compared",
                   "leave intermediate_layer_pairs out of it");
}

}  // namespace

void read_distill_file(ConfigBuilder& builder) {
  const std::string path = builder.config.distill.export_kd_cfg;
  if (path.empty() || !builder.config.distill.has_teacher()) return;
  Json file;
  try {
    file = parse_yaml(read_text_file(path), path);
  } catch (const Error& error) {
    return builder.reject(kFile, reason_of(error), "name a YAML file, or leave it out");
  }
  if (file.is_null()) return;
  if (!file.is_object())
    return builder.reject(kFile, "it is no mapping of settings", "write lines such as kd_loss_scale: 1.0");
  for (const auto& [key, value] : file.as_object()) {
    if (key == "logit_layers" || key == "intermediate_layer_pairs" || value.is_null()) continue;
    if (std::ranges::find(kKeys, key) == kKeys.end()) {
      builder.reject(kFile, fmt::format("it has no setting {} to give", key),
                     fmt::format("use {}", fmt::join(kKeys, ", ")));
      continue;
    }
    const std::string name = fmt::format("distill.{}", key);
    if (!builder.given(name)) builder.give(*Catalog::all().find(name), value, {Source::file, path});
  }
  check_layers(builder, file);
}

}  // namespace megatron
