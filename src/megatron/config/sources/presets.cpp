#include "megatron/config/sources/presets.h"

#include <algorithm>

namespace megatron {
namespace {

using Settings = std::vector<std::pair<std::string, Json>>;

Settings operator+(Settings base, const Settings& more) {
  base.insert(base.end(), more.begin(), more.end());
  return base;
}

std::vector<PrecisionPreset> make_presets() {
  const Settings fp32 = {{"model.bf16", false}, {"model.fp16", false}, {"model.params_dtype", "fp32"}};
  const Settings bf16 = {{"model.bf16", true},
                         {"model.fp16", false},
                         {"model.params_dtype", "bf16"},
                         {"ddp.grad_reduce_in_fp32", true}};
  const Settings fp16 = {{"model.bf16", false}, {"model.fp16", true}, {"model.params_dtype", "fp16"}};
  const Settings delayed = {{"model.fp8", "hybrid"},
                            {"model.fp8_recipe", "delayed"},
                            {"model.fp8_margin", 0},
                            {"model.fp8_amax_history_len", 1024},
                            {"model.fp8_amax_compute_algo", "max"}};
  const Settings tensorwise = {{"model.fp8", "hybrid"}, {"model.fp8_recipe", "tensorwise"}};
  const Settings blockwise = {{"model.fp8", "hybrid"}, {"model.fp8_recipe", "blockwise"}};
  const auto edges = [](int layers) {
    return Settings{{"model.first_last_layers_bf16", true},
                    {"model.num_layers_at_start_in_bf16", layers},
                    {"model.num_layers_at_end_in_bf16", layers}};
  };
  return {
      {"fp32", fp32},
      {"bf16_mixed", bf16},
      {"fp16_mixed", fp16},
      {"bf16_with_fp8_delayed_scaling_mixed", bf16 + delayed, "", true},
      {"fp16_with_fp8_delayed_scaling_mixed", fp16 + delayed, "", true},
      {"bf16_with_fp8_current_scaling_mixed", bf16 + tensorwise + edges(1), "", true},
      {"fp16_with_fp8_current_scaling_mixed", fp16 + tensorwise + edges(1), "", true},
      {"bf16_with_fp8_subchannel_scaling_mixed", bf16 + blockwise},
      {"fp16_with_fp8_subchannel_scaling_mixed", fp16 + blockwise},
      {"bf16_with_mxfp8_mixed", {}, "MXFP8"},
      {"fp16_with_mxfp8_mixed", {}, "MXFP8"},
      {"nemotron_h_bf16_with_fp8_current_scaling_mixed", bf16 + tensorwise + edges(2), "", true},
      {"nanov2_bf16_with_fp8_current_scaling_mixed", bf16 + blockwise + edges(2), "", true},
      {"bf16_with_nvfp4_mixed", {}, "NVFP4"},
      {"nemotron_3_super_bf16_with_nvfp4_mixed", {}, "NVFP4"},
  };
}

const std::vector<PrecisionPreset>& presets() {
  static const std::vector<PrecisionPreset> all = make_presets();
  return all;
}

}  // namespace

const PrecisionPreset* find_precision_preset(std::string_view name) {
  std::string wanted(name);
  std::replace(wanted.begin(), wanted.end(), '-', '_');
  if (wanted == "bf16" || wanted == "fp16") wanted += "_mixed";
  if (wanted == "fp8") wanted = "bf16_with_fp8_current_scaling_mixed";
  if (wanted == "mxfp8" || wanted == "nvfp4") wanted = "bf16_with_" + wanted + "_mixed";
  if (wanted == "fp32_mixed") wanted = "fp32";
  for (const PrecisionPreset& preset : presets())
    if (preset.name == wanted) return &preset;
  return nullptr;
}

std::vector<std::string> precision_preset_names() {
  std::vector<std::string> names = {"bf16", "fp16", "fp8"};
  for (const PrecisionPreset& preset : presets())
    if (preset.lacks.empty()) names.push_back(preset.name);
  return names;
}

}  // namespace megatron
