#pragma once

#include <string_view>

#include "megatron/base/json.h"

namespace megatron::tokenizers {

// A tokenizer.json for GPT-2's vocab.json and merges.txt.
Json gpt2_settings(const Json& vocabulary, std::string_view merges, std::string_view origin);

// A tokenizer.json for Bert's vocab.txt, a piece a line. With `extra_ids`, sentinels <extra_id_0>, … stand
// behind it, and before them [BOS] and [EOS] where the file lacks them.
Json bert_settings(std::string_view vocabulary, bool lower_case, int64_t extra_ids, std::string_view origin);

}  // namespace megatron::tokenizers
