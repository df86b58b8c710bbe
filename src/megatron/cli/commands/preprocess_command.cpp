#include "megatron/cli/commands.h"

#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <iterator>

#include "megatron/base/error.h"
#include "megatron/base/json.h"
#include "megatron/base/writable_folder.h"
#include "megatron/cli/common/tokenizer_flags.h"
#include "megatron/datasets/text/preprocess.h"

namespace megatron {
namespace {

struct PreprocessSettings {
  PreprocessOptions options;
  std::string language = "english";
  TokenizerArguments tokenizer;
  int64_t workers = 1, partitions = 1, log_interval = 1000;
  bool append_eod = false, json = false, find_workers = false;
  std::vector<std::string> workers_to_check;
  int64_t max_documents = 0;
};

std::vector<Flag> preprocess_flags(PreprocessSettings& s) {
  std::vector<Flag> flags = {
      list_flag("--input", "FILES", "JSONL, JSON, .txt or .parquet files, globs", "", s.options.inputs),
      text_flag("--output-prefix", "P", "writes P_KEY_document.bin and .idx", s.options.output_prefix),
      list_flag("--json-keys", "KEYS", "keys or columns to encode [text]", "", s.options.keys),
      int_flag("--workers", "threads that encode [1]", s.workers, 1),
      switch_flag("--append-eod", "end documents with the end-of-document token", s.append_eod),
      switch_flag("--split-sentences", "one sequence a sentence", s.options.split_sentences),
      switch_flag("--keep-newlines", "keep blanks between sentences", s.options.keep_newlines),
      text_flag("--lang", "L", "language of sentence rules [english]", s.language),
      int_flag("--partitions", "deal documents out to N parts in turn [1]", s.partitions, 1),
      switch_flag("--keep-sequential-samples", "keep the order with --partitions", s.options.keep_sequential),
      int_flag("--log-interval", "accepted; progress goes by time", s.log_interval),
      switch_flag("--find-optimal-num-workers", "refused: --workers takes the cores of the machine",
                  s.find_workers),
      list_flag("--workers-to-check", "LIST", "accepted, with the flag above", "", s.workers_to_check),
      int_flag("--max-documents", "accepted, with the flag above", s.max_documents),
      switch_flag("--skip-bad-lines", "count malformed lines instead of stopping", s.options.skip_bad_lines),
      switch_flag("--json", "print one JSON document", s.json)};
  std::ranges::move(tokenizer_flags(s.tokenizer), std::back_inserter(flags));
  return flags;
}

// Files by name or pattern, a pattern's in the order of their names.
std::vector<std::string> expand(const std::vector<std::string>& patterns) {
  std::vector<std::string> files;
  for (const std::string& pattern : patterns) {
    glob_t found{};
    if (::glob(pattern.c_str(), 0, nullptr, &found) == 0) {
      files.insert(files.end(), found.gl_pathv, found.gl_pathv + found.gl_pathc);
    } else {
      files.push_back(pattern);  // opening it tells what is wrong
    }
    ::globfree(&found);
  }
  return files;
}

// The tokenizer by name, options and the files that it reads, so that a run with a changed one starts anew.
std::string describe_encoder(const TokenizerArguments& tokenizer) {
  namespace fs = std::filesystem;
  std::string text = tokenizer.description().dump();
  const auto add = [&](const fs::path& path) {
    if (fs::is_regular_file(path))
      text += fmt::format(" {} {} {}", path.string(), fs::file_size(path),
                          fs::last_write_time(path).time_since_epoch().count());
  };
  for (const std::string& path :
       {tokenizer.model, tokenizer.options.vocab_file, tokenizer.options.merge_file})
    add(path);
  if (fs::is_directory(tokenizer.model)) {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(tokenizer.model)) files.push_back(entry.path());
    std::ranges::sort(files);
    for (const fs::path& path : files) add(path);
  }
  return text;
}

}  // namespace

std::string preprocess_help() {
  PreprocessSettings settings;
  return "usage: megatron preprocess --input FILES --output-prefix P --tokenizer-type T [options]\n"
         "\n"
         "Encodes text into token datasets (.bin and .idx). Files may be compressed by gzip, zstd or xz.\n"
         "The output does not depend on --workers. It appears when it is complete. A run that was stopped\n"
         "leaves P.segments after every 4 GiB of input; the same command again goes on behind them.\n"
         "\n" +
         flags_help(preprocess_flags(settings));
}

int run_preprocess(Invocation& invocation) {
  PreprocessSettings settings;
  const std::vector<std::string> rest =
      parse_flags("preprocess", invocation.args, preprocess_flags(settings));
  if (!rest.empty()) throw UsageError(fmt::format("preprocess: '{}' belongs to no option", rest[0]));
  PreprocessOptions& options = settings.options;
  if (options.inputs.empty()) throw UsageError("preprocess: --input FILES is missing");
  if (options.output_prefix.empty()) throw UsageError("preprocess: --output-prefix P is missing");
  if (options.split_sentences && settings.language != "english")
    throw ConfigError(
        fmt::format("preprocess: --lang {}: sentence rules exist for english", settings.language));
  if (settings.find_workers)
    throw ConfigError(
        "preprocess: --find-optimal-num-workers: workers are threads, of which one a core is best; use "
        "--workers N");
  require_file_place("--output-prefix", options.output_prefix);
  const Tokenizer tokenizer = settings.tokenizer.open("preprocess");
  options.inputs = expand(options.inputs);
  options.type = token_type_for(tokenizer.vocab_size());
  options.workers = static_cast<int>(settings.workers);
  options.partitions = static_cast<int>(settings.partitions);
  options.log = invocation.log;
  options.encoder = describe_encoder(settings.tokenizer);
  if (settings.append_eod) {
    const SpecialIds special = tokenizer.special_ids();
    const TokenId eod = special.eod >= 0 ? special.eod : special.eos;
    if (eod < 0) throw ConfigError("preprocess: --append-eod: the tokenizer has no end-of-document token");
    options.append_eod = eod;
  }
  const bool special = settings.tokenizer.adds_special_tokens();
  const PreprocessReport report = preprocess(options, [&]() -> EncodeText {
    auto encoder = std::make_shared<Encoder>(tokenizer);
    return [encoder, special](std::string_view text, std::vector<int32_t>& tokens) {
      encoder->encode(text, tokens, special);
    };
  });
  const double rate = static_cast<double>(report.input_bytes - report.resumed_bytes) / 1e6 / report.seconds;
  if (settings.json) {
    Json json = Json::object();
    json["prefixes"] = Json(Json::Array(report.prefixes.begin(), report.prefixes.end()));
    json["documents"] = report.documents;
    json["tokens"] = report.tokens;
    json["bad_lines"] = report.bad_lines;
    json["input_bytes"] = report.input_bytes;
    json["resumed_bytes"] = report.resumed_bytes;
    json["seconds"] = report.seconds;
    fmt::print(invocation.out, "{}\n", json.dump());
    return 0;
  }
  for (const std::string& prefix : report.prefixes) fmt::print(invocation.out, "{}\n", prefix);
  invocation.log.info("{} documents, {} tokens in {:.1f} s, {:.1f} MB/s", report.documents, report.tokens,
                      report.seconds, rate);
  return 0;
}

}  // namespace megatron
