#include "megatron/models/whole_model.h"

#include "megatron/models/gpt.h"
#include "megatron/models/t5.h"
#include "megatron/models/vision_language.h"

namespace megatron {

bool is_encoder_decoder(const ModelConfig& config) {
  return config.encoder_num_layers > 0 && config.decoder_num_layers > 0;
}

bool is_decoder(const ModelConfig& config) { return !is_encoder_decoder(config) && !config.masked_lm_head; }

std::unique_ptr<Module> whole_model(const ModelConfig& config, const VisionConfig* vision) {
  if (vision) return whole_model(with_tower(config, *vision));
  if (is_encoder_decoder(config)) return std::make_unique<T5Model>(config, ModelParallel{}, DType::F32);
  return std::make_unique<GptModel>(config, ModelSlice{.first_layer = 0, .layers = config.num_layers},
                                    ModelParallel{}, DType::F32);
}

}  // namespace megatron
