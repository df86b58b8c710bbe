#include "megatron/models/decoder_shape.h"

namespace megatron {

ModelConfig llama_style(const DecoderShape& shape) {
  ModelConfig model;
  model.num_layers = shape.layers;
  model.hidden_size = shape.hidden;
  model.num_attention_heads = shape.heads;
  model.group_query_attention = shape.groups != shape.heads;
  model.num_query_groups = shape.groups;
  model.kv_channels = shape.hidden / shape.heads;
  model.ffn_hidden_size = shape.ffn;
  model.vocab_size = shape.vocab;
  model.seq_length = model.max_position_embeddings = shape.length;
  model.position_embedding_type = PositionEmbedding::rope;
  model.normalization = Normalization::rms_norm;
  model.activation_func = Activation::silu;
  model.gated_linear_unit = true;
  model.add_bias_linear = false;
  model.attention_dropout = model.hidden_dropout = 0;
  return model;
}

ModelConfig gpt2_style(const DecoderShape& shape) {
  ModelConfig model = llama_style(shape);
  model.position_embedding_type = PositionEmbedding::learned_absolute;
  model.normalization = Normalization::layer_norm;
  model.activation_func = Activation::gelu_tanh;
  model.gated_linear_unit = false;
  model.add_bias_linear = true;
  return model;
}

}  // namespace megatron
