#pragma once

#include <cstdint>
#include <span>
#include <string_view>

// Properties of characters, from tables of our own (make_tables.py says which Unicode versions).
namespace megatron::tokenizers {

// General categories of Unicode, in the order of the tables.
enum class Category : uint8_t {
  Cn,
  Lu,
  Ll,
  Lt,
  Lm,
  Lo,
  Mn,
  Mc,
  Me,
  Nd,
  Nl,
  No,
  Pc,
  Pd,
  Ps,
  Pe,
  Pi,
  Pf,
  Po,
  Sm,
  Sc,
  Sk,
  So,
  Zs,
  Zl,
  Zp,
  Cc,
  Cf,
  Cs,
  Co
};

// What the tables know about one code point, as bits.
class CharProperties {
 public:
  explicit constexpr CharProperties(uint16_t bits) : bits_(bits) {}
  constexpr Category category() const { return static_cast<Category>(bits_ & 31); }
  constexpr bool letter() const { return in(Category::Lu, Category::Lo); }
  constexpr bool mark() const { return in(Category::Mn, Category::Me); }
  constexpr bool number() const { return in(Category::Nd, Category::No); }
  constexpr bool bert_punctuation() const { return bits_ & 32; }
  constexpr bool bert_nonspacing() const { return bits_ & 64; }
  constexpr bool bert_control() const { return bits_ & 128; }  // Cc, Cf and Co, line ends included
  constexpr bool combining_mark() const { return bits_ & 256; }
  constexpr bool word() const { return bits_ & 512; }      // \w
  constexpr bool numeric() const { return bits_ & 1024; }  // Nd, Nl and No of Unicode 17
  constexpr bool space() const { return bits_ & 2048; }    // White_Space, \s

 private:
  constexpr bool in(Category first, Category last) const { return category() >= first && category() <= last; }
  uint16_t bits_;
};

// Points above 10FFFF have the properties of unassigned ones.
CharProperties properties_of(char32_t point);

// Canonical combining class.
uint8_t combining_class(char32_t point);

// Lower case of one character, without context; the point itself where it has none.
struct LowerCase {
  char32_t points[2];
  uint32_t size;
};
LowerCase lower_case(char32_t point);

// Equal for characters that differ in case alone.
char32_t fold_case(char32_t point);

// One level of decomposition; empty where there is none. Hangul syllables are not in the tables.
struct Decomposition {
  std::span<const char32_t> points;
  bool compatible = false;  // NFKC and NFKD alone
};
Decomposition decomposition_of(char32_t point);

// The primary composite of two characters, Hangul included; 0 where they do not compose.
char32_t compose(char32_t first, char32_t second);

// Whether NFC leaves every text of such characters alone.
bool nfc_inert(char32_t point);

// The general category or group of categories of that name ("L", "Lu"); a bit per Category, 0 where unknown.
uint32_t category_mask(std::string_view name);

}  // namespace megatron::tokenizers
