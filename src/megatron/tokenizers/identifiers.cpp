#include "megatron/tokenizers/identifiers.h"

#include <fmt/core.h>
#include <algorithm>

namespace megatron {
namespace {

std::string python_text(std::string_view text) { return text.empty() ? "None" : std::string(text); }

// repr() of a string without control characters: single quotes, unless only double ones need no escape.
std::string python_repr(const std::string& text) {
  const bool has_single = text.find('\'') != std::string::npos;
  const char quote = has_single && text.find('"') == std::string::npos ? '"' : '\'';
  std::string result(1, quote);
  for (char c : text) {
    if (c == quote || c == '\\') result += '\\';
    result += c;
  }
  return result + quote;
}

std::string python_list(const std::vector<std::string>& words) {
  std::string result = "[";
  for (const std::string& word : words) result += (result.size() > 1 ? ", " : "") + python_repr(word);
  return result + "]";
}

std::string list_or_none(const std::vector<std::string>& words) {
  return words.empty() ? "None" : python_list(words);
}

bool is_one_of(std::string_view type, std::initializer_list<std::string_view> types) {
  return std::ranges::find(types, type) != types.end();
}

std::vector<std::string> sentinels(int count) {
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.push_back(fmt::format("<extra_id_{}>", i));
  return names;
}

}  // namespace

Json tokenizer_identifiers(std::string_view type, const std::string& path, const TokenizerOptions& options,
                           std::string_view chat_template) {
  const bool classic = is_one_of(type, {"BertWordPieceLowerCase", "BertWordPieceCase", "GPT2BPETokenizer"});
  const bool has_path = !is_one_of(type, {"NullTokenizer", "ByteLevelTokenizer"});
  Json json = Json::object();
  json["class"] = "megatron.core.tokenizers.text.text_tokenizer.MegatronTokenizerText";
  json["tokenizer_path"] = !has_path ? Json() : classic ? Json(type) : Json(path);
  if (classic || type == "HuggingFaceTokenizer") {
    // Upstream gives the cased BERT a hundred sentinels, whatever was asked for.
    const auto special = type == "BertWordPieceCase" ? sentinels(100) : options.special_tokens;
    if (classic) {
      json["additional_special_tokens"] = python_list(special);
    } else {
      json["chat_template"] = python_text(chat_template);
    }
    json["vocab_file"] = python_text(options.vocab_file);
    json["merges_file"] = python_text(options.merge_file);
    if (!classic) json["additional_special_tokens"] = python_list(special);
    json["use_fast"] = "True";
    json["trust_remote_code"] = "False";
    json["include_special_tokens"] = options.include_special_tokens ? "True" : "False";
    json["use_gigatoken"] = "False";
  } else if (is_one_of(type, {"SentencePieceTokenizer", "GPTSentencePieceTokenizer", "Llama2Tokenizer"})) {
    json["chat_template"] = python_text(chat_template);
    json["ignore_extra_whitespaces"] = options.ignore_extra_whitespaces ? "True" : "False";
    json["legacy"] = options.sentencepiece_legacy ? "True" : "False";
    json["special_tokens"] = list_or_none(options.special_tokens);
  } else if (type == "TikTokenizer") {
    json["chat_template"] = python_text(chat_template);
    if (!options.tiktoken_pattern.empty()) json["pattern"] = options.tiktoken_pattern;
    if (options.vocab_size > 0) json["vocab_size"] = std::to_string(options.vocab_size);
    const int64_t special = options.tiktoken_num_special_tokens;
    json["num_special_tokens"] = std::to_string(special >= 0 ? special : 1000);
    json["special_tokens"] = list_or_none(options.special_tokens);
  } else if (type == "NullTokenizer") {
    if (options.vocab_size > 0) json["vocab_size"] = std::to_string(options.vocab_size);
    if (options.null_eod_id >= 0) json["eod_id"] = std::to_string(options.null_eod_id);
    json["pad_id"] = std::to_string(options.null_pad_id);
  }
  return json;
}

}  // namespace megatron
