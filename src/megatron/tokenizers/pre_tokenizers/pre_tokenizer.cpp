#include "megatron/tokenizers/pre_tokenizers/pre_tokenizer.h"

#include "megatron/base/error.h"
#include "megatron/tokenizers/pre_tokenizers/splitting.h"
#include "megatron/tokenizers/settings.h"
#include "megatron/tokenizers/split_pattern.h"
#include "megatron/tokenizers/unicode/scripts.h"
#include "megatron/tokenizers/unicode/unicode.h"
#include "megatron/tokenizers/unicode/utf8.h"

namespace megatron::tokenizers {
namespace {

constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Every character of some kind, as a match of its own.
template <class Member>
std::vector<ByteRange> characters(std::string_view text, Member member) {
  std::vector<ByteRange> found;
  for (size_t i = 0; i < text.size();) {
    const Utf8Char c = decode_utf8(text.substr(i));
    if (member(properties_of(c.point)))
      found.push_back({static_cast<uint32_t>(i), static_cast<uint32_t>(i + c.length)});
    i += c.length;
  }
  return found;
}

constexpr auto kIsSpace = [](CharProperties p) { return p.space(); };
constexpr auto kIsPunctuation = [](CharProperties p) { return p.bert_punctuation(); };

class ByteLevelSplit : public PreTokenizer {
 public:
  explicit ByteLevelSplit(const Json& settings)
      : prefix_space_(bool_or(settings, "add_prefix_space", true)),
        pattern_(bool_or(settings, "use_regex", true) ? std::optional(SplitPattern::regex(kGpt2Pattern))
                                                      : std::nullopt) {}

  void apply(Section& section) const override {
    if (prefix_space_)
      change_words(section, [](AlignedText& text) {
        if (!text.text().starts_with(' ')) text.prepend(" ");
      });
    if (pattern_)
      split_words(section, SplitBehavior::isolated, false,
                  [&](std::string_view text) { return pattern_->matches(text); });
    change_words(section, [](AlignedText& text) { text.to_byte_characters(); });
  }

 private:
  bool prefix_space_;
  std::optional<SplitPattern> pattern_;
};

class PatternSplit : public PreTokenizer {
 public:
  PatternSplit(SplitPattern pattern, SplitBehavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}
  void apply(Section& section) const override {
    split_words(section, behavior_, invert_, [&](std::string_view text) { return pattern_.matches(text); });
  }

 private:
  SplitPattern pattern_;
  SplitBehavior behavior_;
  bool invert_;
};

class Metaspace : public PreTokenizer {
 public:
  explicit Metaspace(const Json& settings)
      : replacement_(one_character(settings, "replacement", "▁")), split_(bool_or(settings, "split", true)) {
    const std::string scheme = string_or(settings, "prepend_scheme", "always");
    if (scheme != "always" && scheme != "first" && scheme != "never")
      fail("tokenizer.json: Metaspace has the prepend_scheme '{}', expected always, first or never", scheme);
    always_ = scheme == "always";
    first_ = scheme == "first";
    if (!bool_or(settings, "add_prefix_space", true)) always_ = first_ = false;
  }

  void apply(Section& section) const override {
    change_words(section, [&](AlignedText& text) {
      std::vector<ByteRange> spaces;
      const std::string& all = text.text();
      for (size_t i = 0; (i = all.find(' ', i)) != std::string::npos; ++i)
        spaces.push_back({static_cast<uint32_t>(i), static_cast<uint32_t>(i + 1)});
      text.replace(spaces, replacement_);
      const bool wanted = always_ || (first_ && text.origin() == 0);
      if (wanted && !text.text().starts_with(replacement_)) text.prepend(replacement_);
    });
    if (split_)
      split_words(section, SplitBehavior::merged_with_next, false,
                  [&](std::string_view text) { return SplitPattern::text(replacement_).matches(text); });
  }

 private:
  std::string replacement_;
  bool split_, always_ = false, first_ = false;
};

// Words of \w and words of what is neither \w nor white space.
class WhitespaceWords : public PreTokenizer {
 public:
  void apply(Section& section) const override {
    split_words(section, SplitBehavior::removed, true, [](std::string_view text) {
      std::vector<ByteRange> found;
      int last = 0;  // 0 white space, 1 word, 2 others
      for (size_t i = 0; i < text.size();) {
        const Utf8Char c = decode_utf8(text.substr(i));
        const CharProperties p = properties_of(c.point);
        const int kind = p.word() ? 1 : p.space() ? 0 : 2;
        const auto begin = static_cast<uint32_t>(i), end = static_cast<uint32_t>(i + c.length);
        if (kind != 0 && kind == last)
          found.back().end = end;
        else if (kind != 0)
          found.push_back({begin, end});
        last = kind;
        i = end;
      }
      return found;
    });
  }
};

// Words of one script, with what belongs to any script behind them. Such characters at the front are in no
// word.
class ScriptWords : public PreTokenizer {
 public:
  void apply(Section& section) const override {
    split_words(section, SplitBehavior::removed, true, [](std::string_view text) {
      std::vector<ByteRange> found;
      uint8_t last = 0;
      for (size_t i = 0; i < text.size();) {
        const Utf8Char c = decode_utf8(text.substr(i));
        const uint8_t script = script_of(c.point);
        const auto begin = static_cast<uint32_t>(i), end = static_cast<uint32_t>(i + c.length);
        if (script != 0 && script != last)
          found.push_back({begin, end});
        else if (last != 0)
          found.back().end = end;
        if (script != 0) last = script;
        i = end;
      }
      return found;
    });
  }
};

class CharacterSplit : public PreTokenizer {
 public:
  CharacterSplit(bool (*member)(CharProperties), SplitBehavior behavior)
      : member_(member), behavior_(behavior) {}
  void apply(Section& section) const override {
    split_words(section, behavior_, false, [&](std::string_view text) { return characters(text, member_); });
  }

 private:
  bool (*member_)(CharProperties);
  SplitBehavior behavior_;
};

class FixedLength : public PreTokenizer {
 public:
  explicit FixedLength(int64_t length) : length_(length) {
    require(length > 0, "tokenizer.json: FixedLength has length {}, expected 1 or more", length);
  }
  void apply(Section& section) const override {
    split_words(section, SplitBehavior::isolated, false, [&](std::string_view text) {
      std::vector<ByteRange> found;
      int64_t count = 0;
      for (size_t i = 0; i < text.size(); ++count) {
        const auto next = static_cast<uint32_t>(i + decode_utf8(text.substr(i)).length);
        if (count % length_ == 0) found.push_back({static_cast<uint32_t>(i), next});
        found.back().end = next;
        i = next;
      }
      return found;
    });
  }

 private:
  int64_t length_;
};

class PreTokenizerSequence : public PreTokenizer {
 public:
  void add(std::unique_ptr<const PreTokenizer> part) {
    if (part) parts_.push_back(std::move(part));
  }
  void apply(Section& section) const override {
    for (const auto& part : parts_) part->apply(section);
  }

 private:
  std::vector<std::unique_ptr<const PreTokenizer>> parts_;
};

}  // namespace

std::unique_ptr<const PreTokenizer> make_pre_tokenizer(const Json& settings) {
  if (settings.is_null()) return nullptr;
  const std::string& type = settings.at("type").as_string();
  if (type == "ByteLevel") return std::make_unique<ByteLevelSplit>(settings);
  if (type == "Split")
    return std::make_unique<PatternSplit>(SplitPattern(settings.at("pattern")),
                                          parse_split_behavior(settings.at("behavior").as_string()),
                                          bool_or(settings, "invert", false));
  if (type == "CharDelimiterSplit")
    return std::make_unique<PatternSplit>(SplitPattern::text(one_character(settings, "delimiter", "")),
                                          SplitBehavior::removed, false);
  if (type == "Metaspace") return std::make_unique<Metaspace>(settings);
  if (type == "Whitespace") return std::make_unique<WhitespaceWords>();
  if (type == "WhitespaceSplit") return std::make_unique<CharacterSplit>(kIsSpace, SplitBehavior::removed);
  if (type == "Punctuation")
    return std::make_unique<CharacterSplit>(
        kIsPunctuation, parse_split_behavior(string_or(settings, "behavior", "Isolated")));
  if (type == "Digits")
    return std::make_unique<CharacterSplit>(
        [](CharProperties p) { return p.numeric(); },
        bool_or(settings, "individual_digits", false) ? SplitBehavior::isolated : SplitBehavior::contiguous);
  if (type == "UnicodeScripts") return std::make_unique<ScriptWords>();
  if (type == "FixedLength") return std::make_unique<FixedLength>(int_or(settings, "length", 5));
  auto sequence = std::make_unique<PreTokenizerSequence>();
  if (type == "BertPreTokenizer") {
    sequence->add(std::make_unique<CharacterSplit>(kIsSpace, SplitBehavior::removed));
    sequence->add(std::make_unique<CharacterSplit>(kIsPunctuation, SplitBehavior::isolated));
  } else if (type == "Sequence") {
    for (const Json& part : settings.at("pretokenizers").as_array()) sequence->add(make_pre_tokenizer(part));
  } else {
    fail("tokenizer.json: pre-tokenizer '{}' is not known; remove it or ask for it in an issue", type);
  }
  return sequence;
}

std::optional<ByteLevelRules> byte_level_rules(const Json& settings) {
  if (settings.is_null()) return std::nullopt;
  const std::string& type = settings.at("type").as_string();
  if (type == "ByteLevel" && bool_or(settings, "use_regex", true))
    return ByteLevelRules{*WordRules::of(kGpt2Pattern), bool_or(settings, "add_prefix_space", true)};
  if (type != "Sequence") return std::nullopt;
  const Json::Array& parts = settings.at("pretokenizers").as_array();
  if (parts.size() == 1) return byte_level_rules(parts[0]);
  if (parts.size() != 2 || parts[0].at("type").as_string() != "Split" ||
      parts[1].at("type").as_string() != "ByteLevel")
    return std::nullopt;
  const Json& split = parts[0];
  if (bool_or(parts[1], "use_regex", true) || bool_or(parts[1], "add_prefix_space", true))
    return std::nullopt;
  const SplitBehavior behavior = parse_split_behavior(split.at("behavior").as_string());
  const bool invert = bool_or(split, "invert", false);
  // Words tile the text, so inverted matches that are removed are all the words, too.
  if (!(behavior == SplitBehavior::isolated || (behavior == SplitBehavior::removed && invert)))
    return std::nullopt;
  const SplitPattern pattern(split.at("pattern"));
  if (!pattern.rules()) return std::nullopt;
  return ByteLevelRules{*pattern.rules(), false};
}

}  // namespace megatron::tokenizers
