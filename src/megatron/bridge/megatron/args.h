#pragma once

#include <functional>
#include <string>

#include "megatron/base/json.h"
#include "megatron/config/schema/model_config.h"

namespace megatron {

// How a run that wrote a checkpoint was laid out.
struct MegatronLayout {
  int64_t tensor = 1, pipeline = 1, virtual_pipeline = 1, expert = 1, expert_tensor = 1;
};

// The model that Megatron-LM's arguments (the Namespace `args` of a checkpoint) describe. A ConfigError lists
// every argument that changes what is computed and is not known here. `note` is told of values that other
// names stand for.
ModelConfig model_from_args(const Json& args, const std::string& origin,
                            const std::function<void(const std::string&)>& note);

MegatronLayout layout_from_args(const Json& args);

// Arguments that describe a model of ours to Megatron-LM, as --use-checkpoint-args reads them.
Json args_from_model(const ModelConfig& model);

}  // namespace megatron
