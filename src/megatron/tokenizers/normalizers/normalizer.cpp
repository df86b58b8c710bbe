#include "megatron/tokenizers/normalizers/normalizer.h"

#include <optional>
#include <variant>

#include "megatron/base/error.h"
#include "megatron/tokenizers/normalizers/char_map.h"
#include "megatron/tokenizers/normalizers/normal_forms.h"
#include "megatron/tokenizers/settings.h"
#include "megatron/tokenizers/split_pattern.h"
#include "megatron/tokenizers/unicode/graphemes.h"
#include "megatron/tokenizers/unicode/unicode.h"
#include "megatron/tokenizers/unicode/utf8.h"

namespace megatron::tokenizers {
namespace {

bool is_ascii(std::string_view text) {
  for (char c : text)
    if (static_cast<unsigned char>(c) >= 0x80) return false;
  return true;
}

template <class Visit>
void for_each_point(std::string_view text, Visit visit) {
  for (size_t i = 0; i < text.size();) {
    const Utf8Char c = decode_utf8(text.substr(i));
    visit(c.point);
    i += c.length;
  }
}

// Keeps some characters; what is dropped counts to the character before it, or to the front.
template <class Keep>
void filter(AlignedText& text, Keep keep) {
  std::vector<TextChange> changes;
  size_t front = 0;
  for_each_point(text.text(), [&](char32_t point) {
    if (keep(point))
      changes.push_back({point, 0});
    else if (changes.empty())
      ++front;
    else
      --changes.back().change;
  });
  text.transform(changes, front);
}

void lower(AlignedText& text) {
  std::vector<TextChange> changes;
  changes.reserve(text.text().size());
  for_each_point(text.text(), [&](char32_t point) {
    const LowerCase lower = lower_case(point);
    for (uint32_t i = 0; i < lower.size; ++i) changes.push_back({lower.points[i], i == 0 ? 0 : 1});
  });
  text.transform(changes);
}

class FormNormalizer : public Normalizer {
 public:
  explicit FormNormalizer(NormalForm form) : form_(form) {}
  void apply(AlignedText& text) const override {
    if (!surely_normal(text.text(), form_)) text.transform(normal_form(text.text(), form_));
  }
  bool leaves(std::string_view text) const override { return surely_normal(text, form_); }

 private:
  NormalForm form_;
};

class LowercaseNormalizer : public Normalizer {
 public:
  void apply(AlignedText& text) const override { lower(text); }
};

class StripNormalizer : public Normalizer {
 public:
  StripNormalizer(bool left, bool right) : left_(left), right_(right) {}
  void apply(AlignedText& text) const override {
    std::vector<TextChange> changes;
    for_each_point(text.text(), [&](char32_t point) { changes.push_back({point, 0}); });
    size_t begin = 0, end = changes.size();
    if (left_)
      while (begin < changes.size() && properties_of(changes[begin].point).space()) ++begin;
    if (right_)
      while (end > 0 && properties_of(changes[end - 1].point).space()) --end;
    if (begin == 0 && end == changes.size()) return;
    if (begin >= end) return text.transform({}, begin);
    text.transform(std::span(changes).subspan(begin, end - begin), begin);
  }

 private:
  bool left_, right_;
};

class StripAccentsNormalizer : public Normalizer {
 public:
  void apply(AlignedText& text) const override {
    filter(text, [](char32_t point) { return !properties_of(point).combining_mark(); });
  }
  bool leaves(std::string_view text) const override { return is_ascii(text); }
};

class ReplaceNormalizer : public Normalizer {
 public:
  ReplaceNormalizer(SplitPattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void apply(AlignedText& text) const override { text.replace(pattern_.matches(text.text()), content_); }

 private:
  SplitPattern pattern_;
  std::string content_;
};

class PrependNormalizer : public Normalizer {
 public:
  explicit PrependNormalizer(std::string content) : content_(std::move(content)) {}
  void apply(AlignedText& text) const override { text.prepend(content_); }

 private:
  std::string content_;
};

class BertNormalizer : public Normalizer {
 public:
  explicit BertNormalizer(const Json& settings)
      : clean_(settings.at("clean_text").as_bool()),
        chinese_(settings.at("handle_chinese_chars").as_bool()),
        lowercase_(settings.at("lowercase").as_bool()),
        strip_accents_(bool_or(settings, "strip_accents", lowercase_)) {}

  void apply(AlignedText& text) const override {
    if (clean_) clean(text);
    if (chinese_) pad_chinese(text);
    if (strip_accents_ && !is_ascii(text.text())) {
      text.transform(normal_form(text.text(), NormalForm::nfd));
      filter(text, [](char32_t point) { return !properties_of(point).bert_nonspacing(); });
    }
    if (lowercase_) lower(text);
  }

 private:
  static void clean(AlignedText& text) {
    filter(text, [](char32_t point) {
      if (point == '\t' || point == '\n' || point == '\r') return true;
      return point != 0 && point != 0xFFFD && !properties_of(point).bert_control();
    });
    std::vector<TextChange> changes;
    for_each_point(text.text(), [&](char32_t point) {
      changes.push_back({properties_of(point).space() ? U' ' : point, 0});
    });
    text.transform(changes);
  }
  static void pad_chinese(AlignedText& text) {
    if (is_ascii(text.text())) return;
    std::vector<TextChange> changes;
    for_each_point(text.text(), [&](char32_t point) {
      if (is_chinese(point)) {
        changes.push_back({U' ', 0});
        changes.push_back({point, 1});
        changes.push_back({U' ', 1});
      } else {
        changes.push_back({point, 0});
      }
    });
    text.transform(changes);
  }
  static bool is_chinese(char32_t c) {
    return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
           (c >= 0x2A700 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) || (c >= 0xF900 && c <= 0xFAFF) ||
           (c >= 0x2F800 && c <= 0x2FA1F);
  }

  bool clean_, chinese_, lowercase_, strip_accents_;
};

// SentencePiece's map, applied to grapheme clusters of up to five bytes as a whole and else to characters.
class PrecompiledNormalizer : public Normalizer {
 public:
  explicit PrecompiledNormalizer(const Json& settings)
      : map_(decode_base64(settings.at("precompiled_charsmap").as_string()), "tokenizer.json: Precompiled") {}

  void apply(AlignedText& text) const override {
    std::vector<TextChange> changes;
    bool modified = false;
    const std::string& all = text.text();
    for (size_t i = 0; i < all.size();) {
      const size_t length = grapheme_length(std::string_view(all).substr(i));
      const std::string_view grapheme = std::string_view(all).substr(i, length);
      i += length;
      if (length < 6)
        if (const auto match = map_.shortest(grapheme); match.length > 0) {
          modified = true;
          replace(changes, grapheme, match.replacement);
          continue;
        }
      for (size_t j = 0; j < grapheme.size();) {
        const Utf8Char c = decode_utf8(grapheme.substr(j));
        const std::string_view one = grapheme.substr(j, c.length);
        j += c.length;
        if (const auto match = map_.shortest(one); match.length > 0) {
          modified = true;
          replace(changes, one, match.replacement);
        } else {
          changes.push_back({c.point, 0});
        }
      }
    }
    if (modified) text.transform(changes);
  }

 private:
  static void replace(std::vector<TextChange>& changes, std::string_view old_part,
                      std::string_view new_part) {
    int32_t old_count = 0, new_count = 0;
    for_each_point(old_part, [&](char32_t) { ++old_count; });
    for_each_point(new_part, [&](char32_t point) {
      changes.push_back({point, 0});
      ++new_count;
    });
    const int32_t difference = new_count - old_count;
    if (difference > 0)  // the last ones were inserted
      for (int32_t i = 0; i < difference; ++i) changes[changes.size() - 1 - i].change = 1;
    else if (difference < 0 && !changes.empty())
      changes.back().change += difference;
  }

  CharMap map_;
};

class NmtNormalizer : public Normalizer {
 public:
  void apply(AlignedText& text) const override {
    filter(text, [](char32_t c) {
      return !((c >= 1 && c <= 8) || c == 0x0B || (c >= 0x0E && c <= 0x1F) || c == 0x7F || c == 0x8F ||
               c == 0x9F);
    });
    std::vector<TextChange> changes;
    for_each_point(text.text(), [&](char32_t c) { changes.push_back({becomes_space(c) ? U' ' : c, 0}); });
    text.transform(changes);
  }

 private:
  static bool becomes_space(char32_t c) {
    return c == 9 || c == 10 || c == 12 || c == 13 || c == 0x1680 || (c >= 0x200B && c <= 0x200F) ||
           c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF || c == 0xFFFD;
  }
};

class ByteLevelNormalizer : public Normalizer {
 public:
  void apply(AlignedText& text) const override { text.to_byte_characters(); }
};

class NormalizerSequence : public Normalizer {
 public:
  explicit NormalizerSequence(const Json& settings) {
    for (const Json& part : settings.at("normalizers").as_array())
      if (auto normalizer = make_normalizer(part)) parts_.push_back(std::move(normalizer));
  }
  void apply(AlignedText& text) const override {
    for (const auto& part : parts_) part->apply(text);
  }
  bool leaves(std::string_view text) const override {
    for (const auto& part : parts_)
      if (!part->leaves(text)) return false;
    return true;
  }

 private:
  std::vector<std::unique_ptr<const Normalizer>> parts_;
};

}  // namespace

std::unique_ptr<const Normalizer> make_normalizer(const Json& settings) {
  if (settings.is_null()) return nullptr;
  const std::string& type = settings.at("type").as_string();
  if (type == "NFC") return std::make_unique<FormNormalizer>(NormalForm::nfc);
  if (type == "NFD") return std::make_unique<FormNormalizer>(NormalForm::nfd);
  if (type == "NFKC") return std::make_unique<FormNormalizer>(NormalForm::nfkc);
  if (type == "NFKD") return std::make_unique<FormNormalizer>(NormalForm::nfkd);
  if (type == "Lowercase") return std::make_unique<LowercaseNormalizer>();
  if (type == "Strip")
    return std::make_unique<StripNormalizer>(settings.at("strip_left").as_bool(),
                                             settings.at("strip_right").as_bool());
  if (type == "StripAccents") return std::make_unique<StripAccentsNormalizer>();
  if (type == "Replace")
    return std::make_unique<ReplaceNormalizer>(SplitPattern(settings.at("pattern")),
                                               settings.at("content").as_string());
  if (type == "Prepend") return std::make_unique<PrependNormalizer>(settings.at("prepend").as_string());
  if (type == "BertNormalizer") return std::make_unique<BertNormalizer>(settings);
  if (type == "Precompiled") return std::make_unique<PrecompiledNormalizer>(settings);
  if (type == "Nmt") return std::make_unique<NmtNormalizer>();
  if (type == "ByteLevel") return std::make_unique<ByteLevelNormalizer>();
  if (type == "Sequence") return std::make_unique<NormalizerSequence>(settings);
  fail("tokenizer.json: normalizer '{}' is not known; remove it or ask for it in an issue", type);
}

}  // namespace megatron::tokenizers
