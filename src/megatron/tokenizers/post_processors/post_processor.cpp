#include "megatron/tokenizers/post_processors/post_processor.h"

#include <algorithm>

#include "megatron/base/error.h"
#include "megatron/tokenizers/settings.h"
#include "megatron/tokenizers/unicode/unicode.h"
#include "megatron/tokenizers/unicode/utf8.h"

namespace megatron::tokenizers {
namespace {

// [piece, id] of Bert's and Roberta's post-processors.
PostProcessor::Added pair_of(const Json& pair) {
  require(pair.size() == 2,
          "tokenizer.json: a token of the post-processor has {} parts, expected piece and id", pair.size());
  return {static_cast<TokenId>(pair[1].as_int()), pair[0].as_string()};
}

// Leaves the white space of a piece out of its place; Ġ is a space.
void trim(Encoding& encoding, bool prefix_space) {
  const auto blank = [](char32_t point) { return point == U'Ġ' || properties_of(point).space(); };
  for (size_t i = 0; i < encoding.ids.size(); ++i) {
    const std::string& piece = encoding.pieces[i];
    std::vector<bool> blanks;
    for (size_t at = 0; at < piece.size();) {
      const Utf8Char c = decode_utf8(std::string_view(piece).substr(at));
      blanks.push_back(blank(c.point));
      at += c.length;
    }
    auto leading = static_cast<uint32_t>(std::find(blanks.begin(), blanks.end(), false) - blanks.begin());
    const auto trailing =
        static_cast<uint32_t>(std::find(blanks.rbegin(), blanks.rend(), false) - blanks.rbegin());
    CharRange& range = encoding.offsets[i];
    if (leading > 0) {
      // A single space at the front was put there, and is in no place.
      if ((i == 0 || range.begin == 0) && prefix_space && leading == 1) leading = 0;
      range.begin = std::min(range.begin + leading, range.end);
    }
    if (trailing > 0 && range.end >= trailing) range.end = std::max(range.end - trailing, range.begin);
  }
}

}  // namespace

PostProcessor::PostProcessor(const Json& settings) {
  if (!settings.is_null()) add(settings);
}

void PostProcessor::add(const Json& settings) {
  const std::string& type = settings.at("type").as_string();
  if (type == "Sequence") {
    for (const Json& part : settings.at("processors").as_array()) add(part);
  } else if (type == "ByteLevel") {
    trim_offsets_ |= bool_or(settings, "trim_offsets", true);
    prefix_space_ |= bool_or(settings, "add_prefix_space", true);
  } else if (type == "TemplateProcessing") {
    add_template(settings);
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    before_.insert(before_.begin(), pair_of(settings.at("cls")));
    behind_.push_back(pair_of(settings.at("sep")));
    if (type == "RobertaProcessing") {
      trim_offsets_ |= bool_or(settings, "trim_offsets", true);
      prefix_space_ |= bool_or(settings, "add_prefix_space", true);
    }
  } else {
    fail("tokenizer.json: post-processor '{}' is not known; remove it or ask for it in an issue", type);
  }
}

void PostProcessor::add_template(const Json& settings) {
  const Json& specials = settings.at("special_tokens");
  std::vector<Added> front, back;
  bool text_seen = false;
  for (const Json& piece : settings.at("single").as_array()) {
    if (piece.contains("Sequence")) {
      require(!text_seen, "tokenizer.json: the template of TemplateProcessing has the text twice");
      text_seen = true;
      continue;
    }
    const Json& special = specials.at(piece.at("SpecialToken").at("id").as_string());
    const Json::Array& ids = special.at("ids").as_array();
    const Json::Array& pieces = special.at("tokens").as_array();
    require(ids.size() == pieces.size(),
            "tokenizer.json: a special token of the template has {} ids and {} pieces", ids.size(),
            pieces.size());
    for (size_t i = 0; i < ids.size(); ++i)
      (text_seen ? back : front).push_back({static_cast<TokenId>(ids[i].as_int()), pieces[i].as_string()});
  }
  require(text_seen, "tokenizer.json: the template of TemplateProcessing lacks the text ($A)");
  before_.insert(before_.begin(), front.begin(),
                 front.end());  // a later processor wraps what earlier ones made
  behind_.insert(behind_.end(), back.begin(), back.end());
}

void PostProcessor::apply(Encoding& encoding, bool add_special_tokens) const {
  if (trim_offsets_) trim(encoding, prefix_space_);
  if (!add_special_tokens || added_tokens() == 0) return;
  Encoding all;
  const auto put = [&](const std::vector<Added>& added) {
    for (const Added& token : added) {
      all.ids.push_back(token.id);
      all.pieces.push_back(token.piece);
      all.offsets.push_back({});
    }
  };
  put(before_);
  all.ids.insert(all.ids.end(), encoding.ids.begin(), encoding.ids.end());
  std::move(encoding.pieces.begin(), encoding.pieces.end(), std::back_inserter(all.pieces));
  all.offsets.insert(all.offsets.end(), encoding.offsets.begin(), encoding.offsets.end());
  put(behind_);
  encoding = std::move(all);
}

}  // namespace megatron::tokenizers
