#include "megatron/datasets/sft/sft_templates.h"

#include <filesystem>

#include "megatron/base/refuse.h"
#include "megatron/tokenizers/chat/chat_template.h"
#include "megatron/tokenizers/metadata.h"

namespace megatron {

namespace fs = std::filesystem;

chat::ChatTemplates find_chat_templates(const std::string& tokenizer_model, const std::string& own,
                                        const std::string& metadata) {
  const fs::path model = tokenizer_model;
  const std::string folder = (fs::is_directory(model) ? model : model.parent_path()).string();
  chat::ChatTemplates templates;
  if (!folder.empty()) templates = chat::read_chat_templates(folder);
  if (!metadata.empty())
    if (const auto text = read_tokenizer_metadata(metadata).chat_template) {
      templates.sources = {{"default", *text}};
      return templates;
    }
  if (own.empty()) return templates;
  require_input(fs::is_regular_file(own), "--chat-template {}: there is no such file", own);
  templates.sources = chat::read_chat_templates(own).sources;
  return templates;
}

std::string chat_template_of(const chat::ChatTemplates& templates) {
  return templates.sources.empty() ? "" : templates.choose();
}

int64_t sft_pad_of(const Tokenizer& tokenizer) {
  const SpecialIds ids = tokenizer.special_ids();
  return ids.pad >= 0 ? ids.pad : std::max<int64_t>(ids.eos, 0);
}

MegatronSftFormat megatron_sft_format(std::string_view name, Tokenizer tokenizer,
                                      const chat::ChatTemplates& templates, int64_t seq_length,
                                      int64_t context_parallel) {
  MegatronSftFormat result;
  const PromptFormat& format = find_prompt_format(name);
  result.options = {.seq_length = seq_length,
                    .pad = sft_pad_of(tokenizer),
                    .context_parallel = context_parallel,
                    .format = format};
  if (!format.pad_piece.empty()) {
    const auto pad = tokenizer.id_of(format.pad_piece);
    require_input(pad.has_value(), "--sft-tokenizer-prompt-format {}: the tokenizer has no token '{}'", name,
                  format.pad_piece);
    result.options.pad = *pad;
  }
  const std::string text =
      format.chat_template.empty() ? chat_template_of(templates) : std::string(format.chat_template);
  require_input(!text.empty(),
                "--sft-tokenizer-prompt-format {}: the tokenizer has no chat template; give --chat-template "
                "FILE",
                name);
  auto rendered = std::make_shared<const chat::ChatTemplate>(text);
  result.encode = [rendered, tokenizer = std::move(tokenizer),
                   specials = templates.special_tokens](std::span<const ChatMessage> messages) {
    Json list = Json::array();
    for (const ChatMessage& message : messages)
      list.push_back(Json::Object{{"role", message.role}, {"content", message.content}});
    const Json names = chat::chat_names(specials, Json::Object{{"messages", list}});
    const std::vector<TokenId> ids = tokenizer.encode(rendered->render(names).text);
    return std::vector<int64_t>(ids.begin(), ids.end());
  };
  return result;
}

}  // namespace megatron
