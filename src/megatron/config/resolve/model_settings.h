#pragma once

#include "megatron/base/json.h"

namespace megatron {

struct ModelConfig;

// The fields of `model` that say what model it is, not how it is laid out or in which precision, where they
// differ from the defaults: from what a configuration's to_json() has as `model`.
Json model_settings(const Json& model);
Json model_settings(const ModelConfig& model);

// The sizes of the layout that --use-mp-args-from-checkpoint-args takes from a checkpoint: from the same
// object, all that it has of them.
Json layout_settings(const Json& model);

}  // namespace megatron
