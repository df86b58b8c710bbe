#include "megatron/tokenizers/make_tokenizer.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "megatron/base/error.h"
#include "megatron/base/json.h"
#include "megatron/base/text_file.h"
#include "megatron/tokenizers/classic_files.h"
#include "megatron/tokenizers/hf_tokenizer.h"
#include "megatron/tokenizers/sentencepiece/sp_tokenizer.h"
#include "megatron/tokenizers/simple_tokenizers.h"
#include "megatron/tokenizers/tiktoken_tokenizer.h"

namespace megatron {
namespace {

using namespace tokenizers;
namespace fs = std::filesystem;

constexpr std::string_view kTypes[] = {
    "HuggingFaceTokenizer", "SentencePieceTokenizer", "GPTSentencePieceTokenizer", "Llama2Tokenizer",
    "TikTokenizer",         "GPT2BPETokenizer",       "BertWordPieceLowerCase",    "BertWordPieceCase",
    "ByteLevelTokenizer",   "NullTokenizer"};

// The file that a type reads: the path itself, or a file of that folder.
std::string file_at(std::string_view type, const std::string& path, std::string_view name) {
  if (path.empty()) throw ConfigError(fmt::format("{}: --tokenizer-model is missing", type));
  const fs::path file = fs::is_directory(path) ? fs::path(path) / name : fs::path(path);
  if (!fs::is_regular_file(file))
    throw ConfigError(fmt::format("{}: {} does not exist; check --tokenizer-model", type, file.string()));
  return file.string();
}

Tokenizer make_hugging_face(std::string_view type, const std::string& path) {
  const std::string file = file_at(type, path, "tokenizer.json");
  const Json settings = Json::read(file);
  try {
    const SpecialIds specials = find_special_ids(fs::is_directory(path) ? path : "", settings);
    return Tokenizer(std::make_shared<HfTokenizer>(settings, specials));
  } catch (const Error& fault) {
    throw Error(fmt::format("{}: {}", file, fault.what()));
  }
}

// The special tokens of upstream's TikTokenizer: these, then numbered ones.
std::vector<std::string> upstream_specials(std::vector<std::string> names, int64_t count) {
  if (names.empty()) names = {"<unk>", "<s>", "</s>", "<mask>", "<pad>", "<cls>", "<sep>"};
  if (static_cast<int64_t>(names.size()) > count)
    throw ConfigError(
        fmt::format("TikTokenizer: {} special tokens are named, --tiktoken-num-special-tokens is {}",
                    names.size(), count));
  for (auto i = static_cast<int64_t>(names.size()); i < count; ++i)
    names.push_back(fmt::format("<SPECIAL_{}>", i));
  return names;
}

AddedToken special_token(std::string content, TokenId id) {
  return {.id = id, .content = std::move(content), .normalized = false, .special = true};
}

Tokenizer make_tiktoken(std::string_view type, const std::string& path, const TokenizerOptions& options) {
  const std::string file = file_at(type, path, "vocab.tiktoken");
  const bool json = file.ends_with(".json");
  const int64_t count = options.tiktoken_num_special_tokens >= 0 ? options.tiktoken_num_special_tokens
                        : json                                   ? 1000
                                                                 : 0;
  if (count > 1 << 20)
    throw ConfigError(fmt::format("TikTokenizer: --tiktoken-num-special-tokens is {}", count));
  std::vector<std::pair<std::string, uint32_t>> ranks;
  if (json) {
    const int64_t whole = options.vocab_size > 0 ? options.vocab_size : 1 << 17;
    ranks =
        read_tiktoken_json(Json::read(file), static_cast<size_t>(std::max<int64_t>(0, whole - count)), file);
  } else {
    ranks = read_tiktoken_file(read_text_file(file), file);
  }
  std::vector<AddedToken> tokens;
  if (count > 0) {
    for (auto& name : upstream_specials(options.special_tokens, count))
      tokens.push_back(special_token(std::move(name), static_cast<TokenId>(tokens.size())));
  } else {
    TokenId next = 0;
    for (const auto& [bytes, rank] : ranks) next = std::max(next, static_cast<TokenId>(rank) + 1);
    for (std::string name : options.special_tokens) {
      if (const size_t equals = name.rfind('='); equals != std::string::npos && equals > 0) {
        const auto [end, fault] = std::from_chars(name.data() + equals + 1, name.data() + name.size(), next);
        if (fault != std::errc() || end != name.data() + name.size() || next < 0)
          throw ConfigError(fmt::format("TikTokenizer: special token '{}' has no id behind '='", name));
        name.resize(equals);
      }
      tokens.push_back(special_token(std::move(name), next++));
    }
  }
  SpecialIds specials;
  const auto find = [&](std::initializer_list<std::string_view> names) -> TokenId {
    for (std::string_view name : names)
      for (const AddedToken& token : tokens)
        if (token.content == name) return token.id;
    return -1;
  };
  specials.unk = find({"<unk>"});
  specials.bos = find({"<s>", "<|begin_of_text|>"});
  specials.eos = specials.eod = find({"</s>", "<|endoftext|>", "<|end_of_text|>"});
  specials.mask = find({"<mask>"});
  specials.pad = find({"<pad>"});
  specials.cls = find({"<cls>"});
  specials.sep = find({"<sep>"});
  const std::string pattern = options.tiktoken_pattern.empty() ? "v2" : options.tiktoken_pattern;
  return Tokenizer(std::make_shared<TiktokenTokenizer>(
      std::move(ranks), tiktoken_pattern(pattern), static_cast<TokenId>(count), std::move(tokens), specials));
}

Tokenizer make_gpt2(std::string_view type, const std::string& path, const TokenizerOptions& options) {
  const std::string vocabulary =
      options.vocab_file.empty() ? file_at(type, path, "vocab.json") : file_at(type, options.vocab_file, "");
  const std::string merges = options.merge_file.empty()
                                 ? file_at(type, fs::path(vocabulary).parent_path() / "merges.txt", "")
                                 : file_at(type, options.merge_file, "");
  const Json settings = gpt2_settings(Json::read(vocabulary), read_text_file(merges), merges);
  return Tokenizer(std::make_shared<HfTokenizer>(settings, find_special_ids("", settings)));
}

Tokenizer make_bert(std::string_view type, const std::string& path, const TokenizerOptions& options) {
  const std::string file = file_at(type, options.vocab_file.empty() ? path : options.vocab_file, "vocab.txt");
  const Json settings = bert_settings(read_text_file(file), type == "BertWordPieceLowerCase", file);
  return Tokenizer(std::make_shared<HfTokenizer>(settings, find_special_ids("", settings)));
}

int64_t vocab_size_or(const TokenizerOptions& options, int64_t otherwise, std::string_view type) {
  const int64_t size = options.vocab_size > 0 ? options.vocab_size : otherwise;
  if (size > INT32_MAX)
    throw ConfigError(fmt::format("{}: --vocab-size is {}, expected at most {}", type, size, INT32_MAX));
  return size;
}

}  // namespace

Tokenizer make_tokenizer(std::string_view type, const std::string& path, const TokenizerOptions& options) {
  if (type == "HuggingFaceTokenizer") return make_hugging_face(type, path);
  if (type == "SentencePieceTokenizer" || type == "GPTSentencePieceTokenizer" || type == "Llama2Tokenizer") {
    const std::string file = file_at(type, path, "tokenizer.model");
    return Tokenizer(
        std::make_shared<SpTokenizer>(SentencePieceFile::parse(read_text_file(file), file), file));
  }
  if (type == "TikTokenizer") return make_tiktoken(type, path, options);
  if (type == "GPT2BPETokenizer") return make_gpt2(type, path, options);
  if (type == "BertWordPieceLowerCase" || type == "BertWordPieceCase") return make_bert(type, path, options);
  if (type == "ByteLevelTokenizer") {
    const int64_t size = vocab_size_or(options, 512, type);
    if (size < 256)
      throw ConfigError(fmt::format("ByteLevelTokenizer: --vocab-size is {}, expected 256 or more", size));
    return Tokenizer(std::make_shared<ByteLevelTokenizer>(size));
  }
  if (type == "NullTokenizer") {
    const int64_t size = vocab_size_or(options, 0, type);
    if (size == 0) throw ConfigError("NullTokenizer: --vocab-size is missing");
    const int64_t eod = options.null_eod_id >= 0 ? options.null_eod_id : size - 1;
    return Tokenizer(std::make_shared<NullTokenizer>(size, static_cast<TokenId>(eod),
                                                     static_cast<TokenId>(options.null_pad_id)));
  }
  std::string known;
  for (std::string_view name : kTypes) known += fmt::format("{}{}", known.empty() ? "" : ", ", name);
  throw ConfigError(fmt::format("--tokenizer-type: '{}' is not known (expected {})", type, known));
}

}  // namespace megatron
