#include "megatron/config/resolve/model_settings.h"

#include "megatron/config/config.h"

namespace megatron {

Json model_settings(const Json& model) {
  const Json defaults = Config().to_json().at("model");
  Json settings = Json::object();
  for (const Schema* rows : {&schema<ModelConfig>(), &schema<MoeConfig>(), &schema<VisionConfig>()})
    for (const Setting& setting : rows->rows())
      if (const Json* value = model.find(setting.key); value && !(*value == defaults.at(setting.key)))
        settings[setting.key] = *value;
  return settings;
}

Json layout_settings(const Json& model) {
  Json settings = Json::object();
  const auto take = [&](const char* key) {
    const Json* value = model.find(key);
    const bool there = value && value->is_int() && value->as_int() > 0;
    if (there) settings[key] = *value;
    return there;
  };
  for (const char* key :
       {"tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size"})
    take(key);
  // Chunks of a stage are said in one way; the number of them follows from the other two.
  const Json* layout = model.find("pipeline_model_parallel_layout");
  if (layout && layout->is_string() && !layout->as_string().empty())
    settings["pipeline_model_parallel_layout"] = *layout;
  else if (!take("num_layers_per_virtual_pipeline_stage"))
    take("virtual_pipeline_model_parallel_size");
  return settings;
}

Json model_settings(const ModelConfig& model) {
  Config config;
  config.model = model;
  return model_settings(config.to_json().at("model"));
}

}  // namespace megatron
