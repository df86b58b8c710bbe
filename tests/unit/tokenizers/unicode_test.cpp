#include <gtest/gtest.h>

#include <random>

#include "megatron/tokenizers/normalizers/normal_forms.h"
#include "megatron/tokenizers/unicode/graphemes.h"
#include "megatron/tokenizers/unicode/unicode.h"
#include "megatron/tokenizers/unicode/utf8.h"

namespace megatron::tokenizers {
namespace {

std::string normalized(std::string_view text, NormalForm form) {
  std::string result;
  for (const TextChange& change : normal_form(text, form)) append_utf8(result, change.point);
  return result;
}

TEST(Unicode, Categories) {
  EXPECT_EQ(properties_of('A').category(), Category::Lu);
  EXPECT_EQ(properties_of(0x1C89).category(), Category::Lu);  // came with Unicode 16
  EXPECT_EQ(properties_of(0x4E2D).category(), Category::Lo);
  EXPECT_EQ(properties_of(0x301).category(), Category::Mn);
  EXPECT_EQ(properties_of(0xBD).category(), Category::No);
  EXPECT_EQ(properties_of(0x378).category(), Category::Cn);
  EXPECT_EQ(properties_of(0xD800).category(), Category::Cs);
  EXPECT_EQ(properties_of(0x110000).category(), Category::Cn);
  EXPECT_TRUE(properties_of(0x3000).space());
  EXPECT_FALSE(properties_of(0x200B).space());
  EXPECT_TRUE(properties_of('$').bert_punctuation());
  EXPECT_FALSE(properties_of(0x2E43).bert_punctuation());  // came with Unicode 9, Bert's set is older
  EXPECT_TRUE(properties_of(0x11DE0).numeric());           // came with Unicode 17
}

TEST(Unicode, LowerCase) {
  EXPECT_EQ(lower_case('Z').points[0], U'z');
  EXPECT_EQ(lower_case(0x130).size, 2u);  // İ
  EXPECT_EQ(lower_case(0x130).points[1], 0x307u);
  EXPECT_EQ(lower_case(0x3A3).points[0], 0x3C3u);
  EXPECT_EQ(lower_case('1').points[0], U'1');
}

TEST(Unicode, NormalForms) {
  EXPECT_EQ(normalized("e\u0301", NormalForm::nfc), "\u00e9");
  EXPECT_EQ(normalized("\u00e9", NormalForm::nfd), "e\u0301");
  EXPECT_EQ(normalized("\u1e9b\u0323", NormalForm::nfc), "\u1e9b\u0323");
  EXPECT_EQ(normalized("\u1e9b\u0323", NormalForm::nfkc), "\u1e69");
  EXPECT_EQ(normalized("\u1e9b\u0323", NormalForm::nfkd), "s\u0323\u0307");
  EXPECT_EQ(normalized("\uac01", NormalForm::nfd), "\u1100\u1161\u11a8");
  EXPECT_EQ(normalized("\u1100\u1161\u11a8", NormalForm::nfc), "\uac01");
  EXPECT_EQ(normalized("a\u0315\u0300\u05ae\u0300b", NormalForm::nfc), "\u00e0\u05ae\u0300\u0315b");
  EXPECT_EQ(normalized("\ufb01", NormalForm::nfkc), "fi");
  EXPECT_EQ(normalized("\u212b", NormalForm::nfc), "\u00c5");
}

// What is surely normal must not change.
TEST(Unicode, SurelyNormalIsNormal) {
  for (char32_t point = 0; point < 0x20000; ++point) {
    std::string text = "a";
    append_utf8(text, point);
    text += "b";
    if (surely_normal(text, NormalForm::nfc)) {
      ASSERT_EQ(normalized(text, NormalForm::nfc), text) << static_cast<uint32_t>(point);
    }
  }
  EXPECT_TRUE(surely_normal("\u4f60\u597d", NormalForm::nfc));
  EXPECT_FALSE(surely_normal("e\u0301", NormalForm::nfc));
}

TEST(Utf8, MalformedBytesBecomeReplacements) {
  EXPECT_EQ(to_utf8_lossy("a\x80z"), "a\ufffdz");
  EXPECT_EQ(to_utf8_lossy("\xff\xfe"), "\ufffd\ufffd");
  EXPECT_EQ(to_utf8_lossy("\xe4\xbd!"), "\ufffd!");  // one for the longest prefix of a character
  EXPECT_EQ(to_utf8_lossy("\xed\xa0\x80"), "\ufffd\ufffd\ufffd");  // a surrogate
  EXPECT_EQ(to_utf8_lossy("\xf0\x9f\x98"), "\ufffd");
  EXPECT_EQ(to_utf8_lossy("\xc0\xaf"), "\ufffd\ufffd");
  EXPECT_EQ(to_utf8_lossy("h\u00e9"), "h\u00e9");
}

TEST(Utf8, ValidityAgreesWithDecoding) {
  for (unsigned a = 0; a < 256; ++a)
    for (unsigned b = 0; b < 256; b += 3)
      for (unsigned c : {0x00u, 0x7Fu, 0x80u, 0xBFu, 0xC0u}) {
        const char bytes[] = {static_cast<char>(a), static_cast<char>(b), static_cast<char>(c)};
        const std::string text(bytes, 3);
        ASSERT_EQ(is_utf8(text), to_utf8_lossy(text) == text || text == "\xef\xbf\xbd")
            << a << " " << b << " " << c;
      }
}

// Wherever a character stands in a longer text, cut or damaged.
TEST(Utf8, ValidityOfLongTexts) {
  std::mt19937 random(3);
  const std::string_view pieces[] = {"a",          "plain ", "\u00e9", "\u4f60",
                                     "\U0001f600", "\ud7ff", "\ue000", "\U0010ffff"};
  int valid = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (size_t i = random() % 60; i > 0; --i) text += pieces[random() % (round % 2 ? 2 : std::size(pieces))];
    if (!text.empty() && round % 3) text[random() % text.size()] = static_cast<char>(random());
    if (!text.empty() && round % 5 == 0) text.resize(random() % text.size());
    ASSERT_EQ(is_utf8(text), to_utf8_lossy(text) == text) << round;
    valid += is_utf8(text);
  }
  EXPECT_GT(valid, 5000);
  EXPECT_LT(valid, 18000);
}

TEST(Graphemes, ShortOnes) {
  EXPECT_EQ(grapheme_length("e\u0301x"), 3u);
  EXPECT_EQ(grapheme_length("\r\n"), 2u);
  EXPECT_EQ(grapheme_length("\n\u0301"), 1u);
  EXPECT_EQ(grapheme_length("ab"), 1u);
  EXPECT_EQ(grapheme_length("\u00bd\u108b"), 2u) << "a spacing mark that stands alone";
  EXPECT_EQ(grapheme_length("\u1000\u1031"), 6u) << "one that does not";
  EXPECT_EQ(grapheme_length("\u0600\u00bd\u0301"), 6u) << "a sign that is put before";
  EXPECT_EQ(grapheme_length("\u0d4ea"), 4u);
  EXPECT_EQ(grapheme_length("\u00e9\u1aeax"), 5u) << "a mark of Unicode 17";
}

TEST(Graphemes, LongOnes) {
  EXPECT_EQ(grapheme_length("\u1100\u1161\u11a8\u0301\u1100"), 11u) << "a syllable of jamos";
  EXPECT_EQ(grapheme_length("\uac01\u1161"), 3u) << "a closed syllable takes no vowel";
  EXPECT_EQ(grapheme_length("\U0001f1e9\U0001f1ea\U0001f1eb"), 8u) << "a flag is two indicators";
  EXPECT_EQ(grapheme_length("\U0001f468\U0001f3fb\u200d\U0001f469\u200d\U0001f467"), 22u) << "joined emoji";
  EXPECT_EQ(grapheme_length("a\u200d\U0001f469"), 4u) << "nothing to join with";
  EXPECT_EQ(grapheme_length("\U0001f469\u200d\u200d\U0001f469"), 10u) << "one ZWJ joins, two do not";
  EXPECT_EQ(grapheme_length("\u0915\u094d\u0937"), 9u) << "a conjunct";
  EXPECT_EQ(grapheme_length("\u0915\u200d\u0937"), 6u) << "no linker";
  EXPECT_EQ(grapheme_length("\u0915\u094d\u0903\u0937"), 9u) << "a spacing mark ends it";
  EXPECT_EQ(grapheme_length("\u0600\u0600\r\n"), 4u);
}

}  // namespace
}  // namespace megatron::tokenizers
