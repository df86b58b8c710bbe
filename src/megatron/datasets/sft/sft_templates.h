#pragma once

#include "megatron/datasets/sft/sft_dataset.h"
#include "megatron/tokenizers/chat/template_folder.h"
#include "megatron/tokenizers/tokenizer.h"

namespace megatron {

// The chat templates of a tokenizer's folder or file; `own`, where it is not "", is a file whose template is
// used instead, and before it the template of `metadata`, a file of --tokenizer-metadata, where it has one.
chat::ChatTemplates find_chat_templates(const std::string& tokenizer_model, const std::string& own,
                                        const std::string& metadata = "");
// The template that conversations are written with; "" where there is none.
std::string chat_template_of(const chat::ChatTemplates& templates);

// The token that pads conversations: the tokenizer's pad, its eos, or 0.
int64_t sft_pad_of(const Tokenizer& tokenizer);

// One of Megatron-LM's prompt formats with a tokenizer: how its SFTDataset reads rows. A ConfigError where
// the tokenizer lacks the token that pads, or a template.
struct MegatronSftFormat {
  SftOptions options;
  EncodeMessages encode;
};
MegatronSftFormat megatron_sft_format(std::string_view name, Tokenizer tokenizer,
                                      const chat::ChatTemplates& templates, int64_t seq_length,
                                      int64_t context_parallel);

}  // namespace megatron
