#include "megatron/tokenizers/make_tokenizer.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <optional>
#include <unordered_map>

#include "megatron/base/json.h"
#include "megatron/base/refuse.h"
#include "megatron/base/text_file.h"
#include "megatron/tokenizers/classic_files.h"
#include "megatron/tokenizers/extra_tokens.h"
#include "megatron/tokenizers/hf_tokenizer.h"
#include "megatron/tokenizers/metadata.h"
#include "megatron/tokenizers/sentencepiece/sp_tokenizer.h"
#include "megatron/tokenizers/sentencepiece/sp_wrapper.h"
#include "megatron/tokenizers/simple_tokenizers.h"
#include "megatron/tokenizers/tiktoken_tokenizer.h"

namespace megatron {
namespace {

using namespace tokenizers;
namespace fs = std::filesystem;

constexpr std::string_view kTypes[] = {
    "HuggingFaceTokenizer", "SFTTokenizer",       "SentencePieceTokenizer", "GPTSentencePieceTokenizer",
    "Llama2Tokenizer",      "TikTokenizer",       "GPT2BPETokenizer",       "BertWordPieceLowerCase",
    "BertWordPieceCase",    "ByteLevelTokenizer", "NullTokenizer"};

// The file that a type reads: the path itself, or a file of that folder.
std::string file_at(std::string_view type, const std::string& path, std::string_view name,
                    std::string_view flag = "--tokenizer-model") {
  if (path.empty()) throw ConfigError(fmt::format("{}: {} is missing", type, flag));
  const fs::path file = fs::is_directory(path) ? fs::path(path) / name : fs::path(path);
  if (!fs::is_regular_file(file))
    throw ConfigError(fmt::format("{}: {} is no file; check {}", type, file.string(), flag));
  return file.string();
}

// A tokenizer.json, read or made of older files, and what it says of special tokens.
struct TokenizerFile {
  TokenizerJson json;
  SpecialIds specials;
  std::shared_ptr<const std::string> text;  // of which `json` has views
};

bool is_json_file(const std::string& file) {
  std::ifstream in(file);
  char first = 0;
  return in >> first && first == '{';
}

// The SentencePiece model that a path for Hugging Face's tokenizers is: the file itself, or the folder's
// where that has no tokenizer.json. "" where it is none.
std::string sentencepiece_model_of(const std::string& path) {
  if (fs::is_directory(path)) {
    const fs::path model = fs::path(path) / "tokenizer.model";
    return !fs::exists(fs::path(path) / "tokenizer.json") && fs::exists(model) ? model.string() : "";
  }
  if (!fs::is_regular_file(path) || is_json_file(path)) return "";
  const std::string bytes = read_text_file(path);
  try {
    return SentencePieceFile::parse(bytes, path).pieces.empty() ? "" : path;
  } catch (const Error&) {
  }
  try {
    read_tiktoken_file(bytes, path);
  } catch (const Error&) {
    return "";  // malformed JSON, then
  }
  throw ConfigError(fmt::format("{} holds tiktoken's ranks; use --tokenizer-type TikTokenizer", path));
}

Tokenizer make_sentencepiece(std::string_view type, const std::string& file,
                             const TokenizerOptions& options) {
  if (is_json_file(file))
    throw ConfigError(
        fmt::format("{}: {} is JSON; use --tokenizer-type HuggingFaceTokenizer for it", type, file));
  auto model = std::make_shared<SpTokenizer>(SentencePieceFile::parse(read_text_file(file), file), file);
  if (!options.sentencepiece_legacy && options.ignore_extra_whitespaces) return Tokenizer(std::move(model));
  return Tokenizer(std::make_shared<SpWrapper>(
      std::move(model), SpWrapperOptions{options.sentencepiece_legacy, options.special_tokens,
                                         options.ignore_extra_whitespaces}));
}

// Refuses options that a type does not read, as the rules of a run do, and a --tokenizer-metadata that is of
// another kind of tokenizer.
void check_options(std::string_view type, const TokenizerOptions& options) {
  const bool sentencepiece = library_of(type) == "sentencepiece";
  const auto refuse = [&](std::string_view flag, std::string_view why, std::string_view fix) {
    throw ConfigError(fmt::format("{}: {} {}; {}", type, flag, why, fix));
  };
  for (const auto& [flag, given] :
       {std::pair{"--tokenizer-sentencepiece-legacy", options.sentencepiece_legacy},
        {"--no-tokenizer-sentencepiece-ignore-extra-whitespaces", !options.ignore_extra_whitespaces}})
    if (given && !sentencepiece) refuse(flag, "is of SentencePiece's types alone", "leave it out");
  if (!options.special_tokens.empty() && !sentencepiece && type != "TikTokenizer" &&
      type != "HuggingFaceTokenizer")
    refuse("--tokenizer-special-tokens", "is of TikTokenizer, SentencePiece and Hugging Face alone",
           "leave it out");
  if (!options.special_tokens.empty() && sentencepiece && !options.sentencepiece_legacy)
    refuse("--tokenizer-special-tokens", "is taken in the legacy form alone",
           "add --tokenizer-sentencepiece-legacy");
  if (!options.assigned_tokens.empty() && type != "HuggingFaceTokenizer")
    refuse("--hf-assign-unused-tokens", "is of Hugging Face's tokenizers alone", "leave it out");
  if (options.vocab_extra_ids > 0 && !type.starts_with("BertWordPiece"))
    refuse("--vocab-extra-ids", "is of BertWordPieceCase and BertWordPieceLowerCase alone", "leave it out");
  if (options.metadata.empty()) return;
  const std::string library = read_tokenizer_metadata(options.metadata).library;
  if (const std::string_view expected = library_of(type); library != expected)
    throw ConfigError(
        fmt::format("--tokenizer-metadata {}: \"library\" is {}, expected {} of {}; leave it out",
                    options.metadata, library, expected, type));
}

TokenizerFile read_hugging_face(std::string_view type, const std::string& path) {
  const std::string file = file_at(type, path, "tokenizer.json");
  auto text = std::make_shared<const std::string>(read_text_file(file));
  TokenizerFile result{TokenizerJson::parse(*text, file), {}, text};
  result.specials = find_special_ids(fs::is_directory(path) ? path : "", result.json);
  return result;
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

TokenizerFile read_gpt2(std::string_view type, const std::string& path, const TokenizerOptions& options,
                        bool with_merges) {
  const std::string vocabulary = options.vocab_file.empty()
                                     ? file_at(type, path, "vocab.json")
                                     : file_at(type, options.vocab_file, "", "--vocab-file");
  const std::string merges =
      options.merge_file.empty()
          ? file_at(type, fs::path(vocabulary).parent_path() / "merges.txt", "", "--merge-file")
          : file_at(type, options.merge_file, "", "--merge-file");
  TokenizerFile result{
      gpt2_settings(Json::read(vocabulary), with_merges ? read_text_file(merges) : "", merges), {}, {}};
  result.specials = find_special_ids("", result.json);
  return result;
}

TokenizerFile read_bert(std::string_view type, const std::string& path, const TokenizerOptions& options) {
  const std::string file =
      file_at(type, options.vocab_file.empty() ? path : options.vocab_file, "vocab.txt", "--vocab-file");
  TokenizerFile result{
      bert_settings(read_text_file(file), type == "BertWordPieceLowerCase", options.vocab_extra_ids, file),
      {},
      {}};
  result.specials = find_special_ids("", result.json);
  return result;
}

// What a type keeps in one tokenizer.json, or could; none for the other types.
std::optional<TokenizerFile> read_settings(std::string_view type, const std::string& path,
                                           const TokenizerOptions& options, bool with_merges) {
  if ((type == "HuggingFaceTokenizer" || type == "SFTTokenizer") && sentencepiece_model_of(path).empty())
    return read_hugging_face(type, path);
  if (type == "GPT2BPETokenizer") return read_gpt2(type, path, options, with_merges);
  if (type == "BertWordPieceLowerCase" || type == "BertWordPieceCase") return read_bert(type, path, options);
  return std::nullopt;
}

// One more than the highest id of the model and of the added tokens. The model's own id of a token counts.
int64_t vocabulary_size(const TokenizerJson& file) {
  std::unordered_map<std::string, int64_t> added;
  if (const Json* tokens = file.settings.find("added_tokens"))
    for (const Json& token : tokens->as_array())
      added[token.at("content").as_string()] = token.at("id").as_int();
  int64_t end = 0;
  if (file.bpe) {
    const Vocabulary& vocabulary = file.bpe->vocabulary;
    std::erase_if(added, [&](const auto& token) { return vocabulary.find(token.first).has_value(); });
    end = vocabulary.end_id();
  } else if (const Json& vocabulary = file.settings.at("model").at("vocab"); vocabulary.is_array()) {
    // Unigram: pieces and scores in the order of their ids.
    for (const Json& piece : vocabulary.as_array()) added.erase(piece[0].as_string());
    end = static_cast<int64_t>(vocabulary.size());
  } else {
    for (const auto& [piece, id] : vocabulary.as_object()) {
      end = std::max(end, id.as_int() + 1);
      added.erase(piece);
    }
  }
  for (const auto& [content, id] : added) end = std::max(end, id + 1);
  return end;
}

std::string name_of_tokenizer(std::string_view type, const std::string& path) {
  return fmt::format("{}{}{}", type, path.empty() ? "" : " ", path);
}

int64_t vocab_size_or(const TokenizerOptions& options, int64_t otherwise, std::string_view type) {
  const int64_t size = options.vocab_size > 0 ? options.vocab_size : otherwise;
  if (size > INT32_MAX)
    throw ConfigError(fmt::format("{}: --vocab-size is {}, expected at most {}", type, size, INT32_MAX));
  return size;
}

Tokenizer make_by_type(std::string_view type, const std::string& path, const TokenizerOptions& options) {
  check_options(type, options);
  if (type == "HuggingFaceTokenizer" || type == "SFTTokenizer")
    if (const std::string file = sentencepiece_model_of(path); !file.empty())
      return make_sentencepiece(type, file, options);
  if (auto file = read_settings(type, path, options, true)) {
    if (options.whole_texts) file->json.settings["truncation"] = file->json.settings["padding"] = Json();
    return Tokenizer(std::make_shared<HfTokenizer>(std::move(file->json), file->specials));
  }
  if (library_of(type) == "sentencepiece")
    return make_sentencepiece(type, file_at(type, path, "tokenizer.model"), options);
  if (type == "TikTokenizer") return make_tiktoken(type, path, options);
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

}  // namespace

Tokenizer make_tokenizer(std::string_view type, const std::string& path, const TokenizerOptions& options) {
  return refuse_faults(name_of_tokenizer(type, path), [&] {
    Tokenizer made = make_by_type(type, path, options);
    if (type != "HuggingFaceTokenizer") return made;
    return with_extra_tokens(with_assigned_tokens(std::move(made), options.assigned_tokens),
                             options.special_tokens);
  });
}

bool adds_special_tokens(std::string_view type, const std::string& path, const TokenizerOptions& options) {
  const std::string_view library = library_of(type);
  const bool has_template = library == "huggingface" || library == "megatron" || library == "sft";
  return options.include_special_tokens && has_template && sentencepiece_model_of(path).empty();
}

VocabularyFacts read_vocabulary_facts(std::string_view type, const std::string& path,
                                      const TokenizerOptions& options) {
  return refuse_faults(name_of_tokenizer(type, path), [&]() -> VocabularyFacts {
    check_options(type, options);
    if (const auto file = read_settings(type, path, options, false);
        file && (type != "HuggingFaceTokenizer" || options.special_tokens.empty()))
      return {vocabulary_size(file->json), file->specials};
    const Tokenizer tokenizer = make_tokenizer(type, path, options);
    return {tokenizer.vocab_size(), tokenizer.special_ids()};
  });
}

}  // namespace megatron
