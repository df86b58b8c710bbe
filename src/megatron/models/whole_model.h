#pragma once

#include <memory>

#include "megatron/models/vision_config.h"
#include "megatron/nn/parameter.h"

namespace megatron {

// The model of a configuration, all of it and without memory, for what asks for its parameters alone: files,
// counts. `vision`: of its tower, where it has one.
std::unique_ptr<Module> whole_model(const ModelConfig& config, const VisionConfig* vision = nullptr);

// Whether it has an encoder and a decoder, and is a T5Model, not a GptModel.
bool is_encoder_decoder(const ModelConfig& config);
// Whether it goes on from a text, each token seeing those before it.
bool is_decoder(const ModelConfig& config);

}  // namespace megatron
