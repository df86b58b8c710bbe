#include "megatron/datasets/sft/sft_encoder.h"

#include <algorithm>

#include "megatron/base/error.h"

namespace megatron {
namespace {

class RowEncoder {
 public:
  RowEncoder(Tokenizer tokenizer, SftEncoderOptions options)
      : tokenizer_(std::move(tokenizer)), options_(std::move(options)) {
    if (options_.chat_template.empty()) return;
    try {
      template_.emplace(options_.chat_template);
    } catch (const chat::TemplateError& problem) {
      throw ConfigError(fmt::format("chat template: {}", problem.what()));
    }
  }

  SftTokens operator()(const Json& json, const std::string& origin) const {
    const SftRow row = parse_sft_row(json, origin, options_.format);
    if (row.is_chat && !template_)
      throw ConfigError(
          fmt::format("{}: the tokenizer has no chat template; give --chat-template FILE", origin));
    // A long prompt gives way to its answer: without one there would be nothing to learn.
    SftTokenOptions tokens{.max_length = options_.max_length, .cut_prompt_first = !row.is_chat};
    if (const TokenId eos = tokenizer_.special_ids().eos; !row.is_chat && eos >= 0) tokens.eos = eos;
    const LearnedText text =
        row.is_chat ? render_conversation(row, *template_, options_.special_tokens, options_.loss, origin)
                    : fill_prompt(row, options_.prompt_form, options_.loss, origin);
    SftTokens result = encode_learned(
        text, [&](std::string_view part) { return encode_with_byte_offsets(tokenizer_, part); }, tokens);
    // The first token is predicted from nothing.
    const bool learns = std::find(result.learned.begin() + (result.learned.empty() ? 0 : 1),
                                  result.learned.end(), 1) != result.learned.end();
    if (!learns && options_.on_nothing_learned) options_.on_nothing_learned(origin);
    return result;
  }

 private:
  Tokenizer tokenizer_;
  SftEncoderOptions options_;
  std::optional<chat::ChatTemplate> template_;
};

}  // namespace

TokensWithOffsets encode_with_byte_offsets(const Tokenizer& tokenizer, std::string_view text) {
  const Encoding encoding = tokenizer.encode_with_offsets(text);
  std::vector<size_t> bytes;  // where each character begins
  for (size_t i = 0; i < text.size(); ++i)
    if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) bytes.push_back(i);
  const auto at = [&](uint32_t character) {
    return character < bytes.size() ? bytes[character] : text.size();
  };
  TokensWithOffsets result;
  for (size_t i = 0; i < encoding.ids.size(); ++i) {
    result.ids.push_back(encoding.ids[i]);
    result.offsets.push_back({at(encoding.offsets[i].begin), at(encoding.offsets[i].end)});
  }
  return result;
}

SftEncoder make_sft_encoder(Tokenizer tokenizer, SftEncoderOptions options) {
  auto encoder = std::make_shared<const RowEncoder>(std::move(tokenizer), std::move(options));
  return [encoder](const Json& row, const std::string& origin) { return (*encoder)(row, origin); };
}

}  // namespace megatron
