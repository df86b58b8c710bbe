#pragma once

#include "megatron/config/resolve/config_builder.h"

namespace megatron {

// [CLS], [SEP], [MASK] and [PAD], in this order behind the vocabulary of a tokenizer that lacks them.
inline constexpr int64_t kBertTokens = 4;

// Which kind of model is meant, where --model-type does not say, and what follows from it: BERT's heads, T5's
// layers and lengths.
void derive_model_type(ConfigBuilder& builder);

}  // namespace megatron
