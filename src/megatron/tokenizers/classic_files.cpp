#include "megatron/tokenizers/classic_files.h"

#include <algorithm>

#include "megatron/base/error.h"

namespace megatron::tokenizers {
namespace {

template <class Visit>
void for_each_line(std::string_view text, Visit visit) {
  for (size_t number = 1; !text.empty(); ++number) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (line.ends_with('\r')) line.remove_suffix(1);
    visit(line, number);
  }
}

Json special_token(std::string_view content, int64_t id) {
  return Json::Object{{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
                      {"rstrip", false}, {"normalized", false}, {"special", true}};
}

Json byte_level() {
  return Json::Object{
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
}

}  // namespace

Json gpt2_settings(const Json& vocabulary, std::string_view merges, std::string_view origin) {
  Json::Array pairs;
  for_each_line(merges, [&](std::string_view line, size_t number) {
    if (line.empty() || line.starts_with("#version")) return;
    const size_t space = line.find(' ');
    require(space != std::string_view::npos && line.find(' ', space + 1) == std::string_view::npos,
            "{}:{}: expected two pieces, got '{}'", origin, number, line);
    pairs.push_back(Json::Array{line.substr(0, space), line.substr(space + 1)});
  });
  Json::Array added;
  if (const Json* end = vocabulary.find("<|endoftext|>"))
    added.push_back(special_token("<|endoftext|>", end->as_int()));
  return Json::Object{
      {"added_tokens", std::move(added)},
      {"pre_tokenizer", byte_level()},
      {"decoder", Json::Object{{"type", "ByteLevel"}}},
      {"model", Json::Object{{"type", "BPE"}, {"vocab", vocabulary}, {"merges", std::move(pairs)}}}};
}

Json bert_settings(std::string_view vocabulary, bool lower_case, int64_t extra_ids, std::string_view origin) {
  Json::Object pieces;
  Json::Array added;
  int64_t cls = -1, sep = -1;
  for_each_line(vocabulary, [&](std::string_view line, size_t number) {
    const auto id = static_cast<int64_t>(number) - 1;
    if (line == "[PAD]" || line == "[UNK]" || line == "[CLS]" || line == "[SEP]" || line == "[MASK]")
      added.push_back(special_token(line, id));
    if (line == "[CLS]") cls = id;
    if (line == "[SEP]") sep = id;
    pieces.emplace_back(line, id);
  });
  if (extra_ids > 0) {
    std::vector<std::string> names{"[BOS]", "[EOS]"};
    for (int64_t i = 0; i < extra_ids; ++i) names.push_back(fmt::format("<extra_id_{}>", i));
    auto next = static_cast<int64_t>(pieces.size());
    for (const std::string& name : names) {
      const auto same = [&](const auto& piece) { return piece.first == name; };
      const auto found = std::find_if(pieces.begin(), pieces.end(), same);
      added.push_back(special_token(name, found == pieces.end() ? next++ : found->second.as_int()));
    }
  }
  require(cls >= 0 && sep >= 0, "{}: [CLS] or [SEP] is missing; is it a WordPiece vocabulary?", origin);
  return Json::Object{{"added_tokens", std::move(added)},
                      {"normalizer", Json::Object{{"type", "BertNormalizer"},
                                                  {"clean_text", true},
                                                  {"handle_chinese_chars", true},
                                                  {"strip_accents", nullptr},
                                                  {"lowercase", lower_case}}},
                      {"pre_tokenizer", Json::Object{{"type", "BertPreTokenizer"}}},
                      {"post_processor", Json::Object{{"type", "BertProcessing"},
                                                      {"sep", Json::Array{"[SEP]", sep}},
                                                      {"cls", Json::Array{"[CLS]", cls}}}},
                      {"decoder", Json::Object{{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}}},
                      {"model", Json::Object{{"type", "WordPiece"},
                                             {"unk_token", "[UNK]"},
                                             {"continuing_subword_prefix", "##"},
                                             {"max_input_chars_per_word", 100},
                                             {"vocab", std::move(pieces)}}}};
}

}  // namespace megatron::tokenizers
