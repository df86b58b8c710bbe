#include "megatron/cli/commands.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "megatron/base/atomic_file.h"
#include "megatron/base/json.h"
#include "megatron/base/refuse.h"
#include "megatron/base/writable_folder.h"
#include "megatron/cli/commands/tokenizer_chat.h"
#include "megatron/cli/common/tokenizer_flags.h"
#include "megatron/tokenizers/training/bpe_trainer.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;

struct Settings {
  TokenizerArguments tokenizer;
  std::string input, out, json_key;
  BpeTrainerOptions training;
  bool add_special_tokens = false, skip_special_tokens = false, json = false;
};

std::vector<Flag> flags(Settings& s) {
  std::vector<Flag> flags = tokenizer_flags(s.tokenizer);
  const std::initializer_list<Flag> own = {
      switch_flag("--add-special-tokens", "encode: also BOS, EOS and what a template adds",
                  s.add_special_tokens),
      switch_flag("--skip-special-tokens", "decode: leave special tokens out", s.skip_special_tokens),
      switch_flag("--json", "encode: ids, pieces and offsets of each line", s.json),
      text_flag("--input", "F", "read this file [standard input]; train: text or .jsonl", s.input),
      text_flag("--json-key", "KEY", "train: key of the text in a .jsonl file [text]", s.json_key),
      text_flag("--pattern", "P", "train: gpt2, llama3, qwen2 or o200k [gpt2]", s.training.pattern),
      int_flag("--min-frequency", "train: merge no rarer pairs [0]", s.training.min_frequency),
      text_flag("--out", "DIR", "train: folder for tokenizer.json, vocab.json, merges.txt", s.out)};
  flags.insert(flags.end(), own.begin(), own.end());
  return flags;
}

// Calls visit(line, "ORIGIN:NUMBER") for every line of the input.
template <class Visit>
void for_each_line(const std::string& path, Visit visit) {
  std::ifstream file;
  if (!path.empty()) {
    require_input(!fs::is_directory(path), "tokenizer: --input {} is a folder; name a file", path);
    file.open(path, std::ios::binary);
    require_input(file.is_open(), "tokenizer: cannot read {}: {}", path, std::strerror(errno));
  }
  std::istream& in = path.empty() ? std::cin : file;
  std::string line;
  for (int64_t number = 1; std::getline(in, line); ++number) {
    const std::string origin = fmt::format("{}:{}", path.empty() ? "standard input" : path, number);
    refuse_faults(origin, [&] { visit(line, origin, !in.eof()); });
  }
}

Json encoded(const Tokenizer& tokenizer, const std::string& text, bool add_special_tokens) {
  const Encoding encoding = tokenizer.encode_with_offsets(text, add_special_tokens);
  Json ids = Json::array(), pieces = Json::array(), offsets = Json::array();
  for (size_t i = 0; i < encoding.ids.size(); ++i) {
    ids.push_back(encoding.ids[i]);
    pieces.push_back(encoding.pieces[i]);
    offsets.push_back(Json::Array{static_cast<int64_t>(encoding.offsets[i].begin),
                                  static_cast<int64_t>(encoding.offsets[i].end)});
  }
  return Json::Object{
      {"ids", std::move(ids)}, {"pieces", std::move(pieces)}, {"offsets", std::move(offsets)}};
}

void encode_lines(Invocation& invocation, const Settings& settings, const Tokenizer& tokenizer) {
  Encoder encoder(tokenizer);
  std::vector<TokenId> ids;
  std::string row;
  for_each_line(settings.input, [&](const std::string& line, const std::string& origin, bool) {
    const Json text = Json::parse(line, origin);
    if (!text.is_string())
      throw ConfigError(fmt::format("{}: expected a JSON string, got {}", origin, text.type_name()));
    if (settings.json) {
      row = encoded(tokenizer, text.as_string(), settings.add_special_tokens).dump();
    } else {
      ids.clear();
      encoder.encode(text.as_string(), ids, settings.add_special_tokens);
      row = "[";
      for (TokenId id : ids) fmt::format_to(std::back_inserter(row), "{}{}", row.size() > 1 ? ", " : "", id);
      row += "]";
    }
    fmt::print(invocation.out, "{}\n", row);
    std::fflush(invocation.out);  // whoever feeds lines one by one waits for each
  });
}

void decode_lines(Invocation& invocation, const Settings& settings, const Tokenizer& tokenizer) {
  for_each_line(settings.input, [&](const std::string& line, const std::string& origin, bool) {
    const Json list = Json::parse(line, origin);
    if (!list.is_array())
      throw ConfigError(fmt::format("{}: expected a JSON array of ids, got {}", origin, list.type_name()));
    std::vector<TokenId> ids;
    for (const Json& id : list.as_array()) {
      const int64_t value = id.as_int();
      ids.push_back(value < 0 || value > INT32_MAX ? -1 : static_cast<TokenId>(value));
    }
    fmt::print(invocation.out, "{}\n", Json(tokenizer.decode(ids, settings.skip_special_tokens)).dump());
    std::fflush(invocation.out);
  });
}

int train(Invocation& invocation, Settings settings) {
  if (settings.out.empty()) throw UsageError("tokenizer train: --out DIR is missing");
  require_folder("tokenizer train: --out", settings.out);
  const TokenizerOptions& options = settings.tokenizer.options;
  if (options.vocab_size > 0) settings.training.vocab_size = options.vocab_size;
  settings.training.special_tokens = options.special_tokens;
  // preprocess --append-eod needs an end of documents.
  if (settings.training.special_tokens.empty()) settings.training.special_tokens = {"<|endoftext|>"};
  BpeTrainer trainer(settings.training);
  const bool rows = settings.input.ends_with(".jsonl") || !settings.json_key.empty();
  const std::string key = settings.json_key.empty() ? "text" : settings.json_key;
  bool empty = true;
  for_each_line(settings.input, [&](std::string& line, const std::string& origin, bool ended) {
    if (line.find_first_not_of(" \t\r") != std::string::npos) {
      empty = false;
      if (rows) trainer.add(Json::parse(line, origin).at(key).as_string());
    }
    if (rows) return;
    if (ended) line += '\n';
    trainer.add(line);
  });
  require_input(!empty, "tokenizer train: {} has no text to learn from",
                settings.input.empty() ? "standard input" : settings.input);
  const TrainedBpe trained = trainer.train();
  const fs::path folder = settings.out;
  write_file_atomically((folder / "vocab.json").string(), trained.vocab_json().dump());
  write_file_atomically((folder / "merges.txt").string(), trained.merges_text());
  write_file_atomically((folder / "tokenizer.json").string(), trained.to_json().dump(2));
  print_path(invocation, settings.out, settings.json);
  return 0;
}

}  // namespace

std::string tokenizer_help() {
  Settings settings;
  return "usage: megatron tokenizer encode|decode --tokenizer-type T --tokenizer-model PATH [options] < "
         "LINES\n"
         "       megatron tokenizer train --input F --out DIR --vocab-size N [options]\n"
         "       megatron tokenizer chat --template FILE < conversations\n"
         "\n"
         "encode reads a JSON string a line and writes a JSON array of ids a line; decode does the reverse.\n"
         "train learns a byte-level BPE vocabulary from text, with the merges of Hugging Face's trainer: of\n"
         "--vocab-size tokens [30000], the first of them --tokenizer-special-tokens [<|endoftext|>].\n"
         "\n" +
         flags_help(flags(settings));
}

std::string tokenizer_part_help(std::string_view part) {
  return part == "chat" ? tokenizer_chat_help() : tokenizer_help();
}

int run_tokenizer(Invocation& invocation) {
  if (!invocation.args.empty() && invocation.args[0] == "chat") {
    invocation.args.erase(invocation.args.begin());
    return run_tokenizer_chat(invocation, std::cin);
  }
  Settings settings;
  const std::vector<std::string> words = parse_flags("tokenizer", invocation.args, flags(settings));
  if (words.size() != 1) throw UsageError("tokenizer: say encode, decode, train or chat");
  if (words[0] == "train") return train(invocation, std::move(settings));
  if (words[0] != "encode" && words[0] != "decode")
    throw UsageError(fmt::format("tokenizer: there is no '{}'; say encode, decode, train or chat", words[0]));
  settings.tokenizer.options.whole_texts = false;
  const Tokenizer tokenizer = settings.tokenizer.open("tokenizer " + words[0]);
  words[0] == "encode" ? encode_lines(invocation, settings, tokenizer)
                       : decode_lines(invocation, settings, tokenizer);
  return 0;
}

}  // namespace megatron
