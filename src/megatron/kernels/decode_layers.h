#pragma once

#include <span>

#include "megatron/tensor/tensor.h"

namespace megatron {

inline constexpr int64_t kMaxDecodeRows = 4;

// Weights of a decoder's layer, and its pages of the KV cache, [rows, kv heads, head_dim].
struct DecodeLayer {
  Tensor input_norm, qkv, projection, mlp_norm, fc1, fc2;
  Tensor keys, values;
};

// One persistent kernel, which reads all weights as one stream: one token of each of at most kMaxDecodeRows
// sequences, if shared memory holds their rows, through all layers of a decoder: RMSNorm, rotated attention
// with grouped heads to keys in blocks, SwiGLU, the last norm and the output layer. fc1 holds the gate's
// rows, then up's.
struct DecodeLayersArgs {
  std::span<const DecodeLayer> layers;
  Tensor ids, table;         // int64 [rows]: tokens, which are rows of the table [any, hidden]
  Tensor final_norm, head;   // head [vocabulary, hidden]
  Tensor cos, sin;           // fp32 [rows, rotated channels / 2]
  bool interleaved = false;  // which channels turn together
  Tensor slots;              // int64 [rows]: where the cache keeps the tokens' keys and values
  Tensor blocks;             // int32 [rows, blocks]
  Tensor key_lengths;        // int32 [rows], with the new token
  int64_t block_size = 0, max_keys = 0;
  int64_t heads = 0;
  double scale = 1, epsilon = 0;
  bool zero_centered = false;
  Tensor logits;  // [rows, vocabulary]
};

}  // namespace megatron
