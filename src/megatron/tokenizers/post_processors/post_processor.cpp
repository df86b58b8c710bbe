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
  require(pair[1].as_int() >= 0, "tokenizer.json: a token of the post-processor has id {}", pair[1].as_int());
  return {static_cast<TokenId>(pair[1].as_int()), pair[0].as_string()};
}

// Leaves the white space of a piece out of its place; Ġ is a space. `begins_list`: the first token is the
// first of its list.
void trim(Encoding& encoding, bool prefix_space, bool begins_list) {
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
      const bool first = (i == 0 && begins_list) || range.begin == 0;
      if (first && prefix_space && leading == 1) leading = 0;
      range.begin = std::min(range.begin + leading, range.end);
    }
    if (trailing > 0 && range.end >= trailing) range.end = std::max(range.end - trailing, range.begin);
  }
}

}  // namespace

// The package hands lists of tokens from one processor to the next: a template makes a list of each of its
// parts, and what comes behind it sees these as texts of their own. The text itself is one token here, which
// has no id.
class PostProcessor::Lists {
 public:
  using List = std::vector<Added>;

  bool behind_others() const {
    for (const List& list : lists_)
      for (size_t i = 0; i < list.size(); ++i)
        if (is_text(list[i])) return i > 0;
    return false;
  }
  // Of Bert: the first list gets both tokens, others the last one; Roberta begins these with it, too.
  void wrap(const Added& cls, const Added& sep, bool roberta) {
    for (size_t i = 0; i < lists_.size(); ++i) {
      if (i == 0 || roberta) lists_[i].insert(lists_[i].begin(), i == 0 ? cls : sep);
      lists_[i].push_back(sep);
    }
  }
  // Gives how many tokens the template of a single text adds.
  size_t fill(const Json& settings) {
    require(lists_.size() <= 2, "tokenizer.json: TemplateProcessing meets {} texts, expected one or two",
            lists_.size());
    const size_t added = special_tokens_of_single(settings);
    std::vector<List> filled;
    for (const Json& piece : settings.at(lists_.size() == 2 ? "pair" : "single").as_array()) {
      if (const Json* sequence = piece.find("Sequence")) {
        const size_t index = sequence->at("id").as_string() == "A" ? 0 : 1;
        require(index < lists_.size(), "tokenizer.json: the template of one text has another ($B)");
        filled.push_back(lists_[index]);
      } else {
        filled.push_back(special(settings, piece));
      }
    }
    lists_ = std::move(filled);
    return added;
  }
  // What stands before and behind the text.
  void tell(List& before, List& behind) const {
    bool seen = false;
    for (const List& list : lists_) {
      for (const Added& token : list) {
        require(!is_text(token) || !seen,
                "tokenizer.json: the template of TemplateProcessing has the text twice");
        if (is_text(token))
          seen = true;
        else
          (seen ? behind : before).push_back(token);
      }
    }
    require(seen, "tokenizer.json: the template of TemplateProcessing lacks the text ($A)");
  }

 private:
  static constexpr TokenId kText = -1;
  static bool is_text(const Added& token) { return token.id == kText; }
  static List special(const Json& settings, const Json& piece) {
    const Json& special = settings.at("special_tokens").at(piece.at("SpecialToken").at("id").as_string());
    const Json::Array& ids = special.at("ids").as_array();
    const Json::Array& pieces = special.at("tokens").as_array();
    require(ids.size() == pieces.size(),
            "tokenizer.json: a special token of the template has {} ids and {} pieces", ids.size(),
            pieces.size());
    List list;
    for (size_t i = 0; i < ids.size(); ++i) {
      require(ids[i].as_int() >= 0, "tokenizer.json: a special token of the template has id {}",
              ids[i].as_int());
      list.push_back({static_cast<TokenId>(ids[i].as_int()), pieces[i].as_string()});
    }
    return list;
  }
  static size_t special_tokens_of_single(const Json& settings) {
    size_t count = 0;
    for (const Json& piece : settings.at("single").as_array())
      if (!piece.contains("Sequence")) count += special(settings, piece).size();
    return count;
  }

  std::vector<List> lists_ = {List{Added{kText, ""}}};
};

PostProcessor::PostProcessor(const Json& settings) {
  if (settings.is_null()) return;
  Lists lists;
  add(settings, lists);
  lists.tell(before_, behind_);
}

void PostProcessor::add(const Json& settings, Lists& lists) {
  const std::string& type = settings.at("type").as_string();
  if (type == "Sequence") {
    for (const Json& part : settings.at("processors").as_array()) add(part, lists);
    return;
  }
  if ((type == "ByteLevel" || type == "RobertaProcessing") && bool_or(settings, "trim_offsets", true))
    trims_.push_back({bool_or(settings, "add_prefix_space", true), lists.behind_others()});
  if (type == "BertProcessing" || type == "RobertaProcessing") {
    lists.wrap(pair_of(settings.at("cls")), pair_of(settings.at("sep")), type == "RobertaProcessing");
    added_tokens_ += 2;
  } else if (type == "TemplateProcessing") {
    added_tokens_ += lists.fill(settings);
  } else if (type != "ByteLevel") {
    fail("tokenizer.json: post-processor '{}' is not known; remove it or ask for it in an issue", type);
  }
}

void PostProcessor::apply(Encoding& encoding, bool add_special_tokens) const {
  for (const Trim& rule : trims_)
    trim(encoding, rule.prefix_space, !(add_special_tokens && rule.behind_others));
  if (!add_special_tokens || before_.size() + behind_.size() == 0) return;
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
