#include <filesystem>

#include "megatron/tokenizers/hf_tokenizer.h"
#include "megatron/tokenizers/settings.h"

namespace megatron::tokenizers {
namespace {

struct SpecialName {
  TokenId SpecialIds::*id;
  std::string_view key;                           // in the configuration
  std::initializer_list<std::string_view> usual;  // names where the configuration has none
};

const SpecialName kNames[] = {
    {&SpecialIds::bos, "bos_token", {"<|begin_of_text|>", "<s>", "<bos>", "<|startoftext|>"}},
    {&SpecialIds::eos, "eos_token", {"<|end_of_text|>", "<|endoftext|>", "</s>", "<eos>"}},
    {&SpecialIds::pad, "pad_token", {"<pad>", "[PAD]", "<|pad|>"}},
    {&SpecialIds::unk, "unk_token", {"<unk>", "[UNK]"}},
    {&SpecialIds::cls, "cls_token", {"[CLS]", "<cls>"}},
    {&SpecialIds::sep, "sep_token", {"[SEP]", "<sep>"}},
    {&SpecialIds::mask, "mask_token", {"[MASK]", "<mask>"}},
};

// "token" or {"content": "token"}.
std::optional<std::string> token_text(const Json& settings, std::string_view key) {
  const Json* value = settings.is_object() ? settings.find(key) : nullptr;
  if (value && value->is_string()) return value->as_string();
  if (value && value->is_object())
    if (const Json* content = value->find("content"); content && content->is_string())
      return content->as_string();
  return std::nullopt;
}

}  // namespace

SpecialIds find_special_ids(const std::string& folder, const TokenizerJson& tokenizer) {
  std::vector<Json> sources;
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const auto path = std::filesystem::path(folder) / name;
    if (!folder.empty() && std::filesystem::exists(path)) sources.push_back(Json::read(path.string()));
  }
  std::unordered_map<std::string, TokenId> added;
  if (const Json* tokens = tokenizer.settings.find("added_tokens"))
    for (const Json& token : tokens->as_array())
      added[token.at("content").as_string()] = static_cast<TokenId>(token.at("id").as_int());
  const Json* vocabulary = tokenizer.settings.at("model").find("vocab");
  const auto id_of = [&](const std::string& text) -> TokenId {
    if (const auto found = added.find(text); found != added.end()) return found->second;
    if (tokenizer.bpe) return tokenizer.bpe->vocabulary.find(text).value_or(-1);
    if (vocabulary && vocabulary->is_object())
      if (const Json* id = vocabulary->find(text)) return static_cast<TokenId>(id->as_int());
    return -1;
  };
  SpecialIds ids;
  for (const SpecialName& name : kNames) {
    std::optional<std::string> text;
    for (const Json& source : sources)
      if (!text) text = token_text(source, name.key);
    if (text) {
      ids.*name.id = id_of(*text);
    } else if (sources.empty()) {
      for (std::string_view usual : name.usual)
        if (ids.*name.id < 0)
          if (const auto found = added.find(std::string(usual)); found != added.end())
            ids.*name.id = found->second;
    }
  }
  ids.eod = ids.eos >= 0 ? ids.eos : ids.sep;
  return ids;
}

}  // namespace megatron::tokenizers
