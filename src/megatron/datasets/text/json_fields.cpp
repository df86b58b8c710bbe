#include "megatron/datasets/text/json_fields.h"

#include <fmt/core.h>
#ifdef __AVX2__
#include <immintrin.h>
#endif

#include <bit>
#include <cstdint>
#include <cstring>

#include "megatron/tokenizers/unicode/utf8.h"

namespace megatron {
namespace {

static_assert(std::endian::native == std::endian::little);  // the first byte is the lowest
constexpr uint64_t kOnes = 0x0101010101010101u, kHighs = 0x8080808080808080u;

constexpr uint64_t has_zero(uint64_t word) { return (word - kOnes) & ~word & kHighs; }

// The high bit of each of eight bytes that is a quote, a backslash or a control character. The lowest one is
// right; those above it may be set by a borrow.
uint64_t special_bytes(uint64_t word) {
  return has_zero(word ^ (kOnes * '"')) | has_zero(word ^ (kOnes * '\\')) |
         ((word - kOnes * 0x20) & ~word & kHighs);
}

// The next quote, backslash or control character, or at most a few bytes before it or the end.
const char* skip_plain(const char* at, const char* end) {
#ifdef __AVX2__
  for (; end - at >= 32; at += 32) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
    const __m256i control =
        _mm256_cmpeq_epi8(_mm256_max_epu8(bytes, _mm256_set1_epi8(0x1F)), _mm256_set1_epi8(0x1F));
    const __m256i special =
        _mm256_or_si256(control, _mm256_or_si256(_mm256_cmpeq_epi8(bytes, _mm256_set1_epi8('"')),
                                                 _mm256_cmpeq_epi8(bytes, _mm256_set1_epi8('\\'))));
    if (const auto hit = static_cast<uint32_t>(_mm256_movemask_epi8(special)))
      return at + std::countr_zero(hit);
  }
#endif
  for (; end - at >= 8; at += 8) {
    uint64_t word;
    std::memcpy(&word, at, 8);
    if (const uint64_t special = special_bytes(word)) return at + std::countr_zero(special) / 8;
  }
  return at;
}

class Scanner {
 public:
  explicit Scanner(std::string_view text)
      : begin_(text.data()), at_(text.data()), end_(text.data() + text.size()) {}

  const std::string& problem() const { return problem_; }
  bool refuse(std::string_view what) {
    if (problem_.empty()) problem_ = fmt::format("{} at byte {}", what, at_ - begin_);
    return false;
  }

  void skip_blanks() {
    while (at_ < end_ && (*at_ == ' ' || *at_ == '\t' || *at_ == '\n' || *at_ == '\r')) ++at_;
  }
  bool at_end() const { return at_ == end_; }
  char peek() const { return at_ < end_ ? *at_ : '\0'; }
  bool take(char c) {
    if (peek() != c || at_ == end_) return false;
    ++at_;
    return true;
  }

  // A string from its opening quote on, unescaped into `out` where one is given.
  bool string(std::string* out) {
    if (!take('"')) return refuse("a string was expected");
    const char* run = at_;
    auto keep = [&] {
      if (out) out->append(run, static_cast<size_t>(at_ - run));
    };
    while (true) {
      at_ = skip_plain(at_, end_);
      if (at_ == end_) return refuse("a string does not end");
      const auto c = static_cast<uint8_t>(*at_);
      if (c == '"') {
        keep();
        ++at_;
        return true;
      }
      if (c == '\\') {
        keep();
        ++at_;
        if (!escape(out)) return false;
        run = at_;
      } else if (c < 0x20) {
        return refuse("a control character stands in a string");
      } else {
        ++at_;
      }
    }
  }

  // A list from its opening bracket on. Where it holds something else than strings, `strings` becomes false.
  bool list(JsonText& out, bool& strings) {
    take('[');
    skip_blanks();
    if (take(']')) return true;
    while (true) {
      skip_blanks();
      if (peek() == '"') {
        if (!string(&out.text)) return false;
        out.ends.push_back(out.text.size());
      } else {
        strings = false;
        if (!skip_value()) return false;
      }
      skip_blanks();
      if (take(']')) return true;
      if (!take(',')) return refuse("a comma or a closing bracket was expected");
    }
  }

  // Any value, checked and left out.
  bool skip_value() {
    std::vector<char> closers;
    while (true) {
      skip_blanks();
      if (at_end()) return refuse("a value was expected");
      const char c = *at_;
      bool opened = false;
      if (c == '{' || c == '[') {
        if (closers.size() > 1000) return refuse("values are nested too deeply");
        ++at_;
        closers.push_back(c == '{' ? '}' : ']');
        skip_blanks();
        if (take(closers.back())) {
          closers.pop_back();
        } else {
          opened = true;
        }
      } else if (c == '"') {
        if (!string(nullptr)) return false;
      } else if (!scalar()) {
        return false;
      }
      if (!opened) {
        while (!closers.empty()) {
          skip_blanks();
          if (take(',')) break;
          if (!take(closers.back())) return refuse("a comma or a closing bracket was expected");
          closers.pop_back();
        }
        if (closers.empty()) return true;
      }
      if (closers.back() == '}') {
        skip_blanks();
        if (!string(nullptr)) return false;
        skip_blanks();
        if (!take(':')) return refuse("a colon was expected");
      }
    }
  }

 private:
  bool scalar() {
    for (std::string_view word : {"true", "false", "null", "NaN", "Infinity", "-Infinity"}) {
      if (static_cast<size_t>(end_ - at_) >= word.size() && std::memcmp(at_, word.data(), word.size()) == 0) {
        at_ += word.size();
        return true;
      }
    }
    auto digits = [&] {
      const char* before = at_;
      while (at_ < end_ && *at_ >= '0' && *at_ <= '9') ++at_;
      return at_ > before;
    };
    take('-');
    if (!take('0') && !digits()) return refuse("a value was expected");
    if (take('.') && !digits()) return refuse("a number has no digits behind its point");
    if (take('e') || take('E')) {
      if (!take('+')) take('-');
      if (!digits()) return refuse("a number has no digits in its exponent");
    }
    return true;
  }

  bool hex4(uint32_t& value) {
    if (end_ - at_ < 4) return refuse("an escape is cut");
    value = 0;
    for (int i = 0; i < 4; ++i) {
      const char c = *at_++;
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) return refuse("an escape holds no hexadecimal digit");
      value = value << 4 | static_cast<uint32_t>(digit);
    }
    return true;
  }

  bool escape(std::string* out) {
    if (at_end()) return refuse("a string does not end");
    constexpr std::string_view names = "\"\\/bfnrt", bytes = "\"\\/\b\f\n\r\t";
    const char c = *at_++;
    if (const size_t known = names.find(c); known != std::string_view::npos) {
      if (out) out->push_back(bytes[known]);
      return true;
    }
    if (c != 'u') return refuse("an unknown escape");
    uint32_t point;
    if (!hex4(point)) return false;
    if (point >= 0xd800 && point < 0xe000) {
      uint32_t low = 0;
      if (point >= 0xdc00 || !take('\\') || !take('u') || !hex4(low) || low < 0xdc00 || low >= 0xe000)
        return refuse("half of a surrogate pair");
      point = 0x10000 + ((point - 0xd800) << 10) + (low - 0xdc00);
    }
    if (out) append_utf8(*out, point);
    return true;
  }

  static void append_utf8(std::string& out, uint32_t point) {
    auto tail = [&](int shift) { out.push_back(static_cast<char>(0x80 | ((point >> shift) & 0x3f))); };
    if (point < 0x80) {
      out.push_back(static_cast<char>(point));
    } else if (point < 0x800) {
      out.push_back(static_cast<char>(0xc0 | point >> 6));
      tail(0);
    } else if (point < 0x10000) {
      out.push_back(static_cast<char>(0xe0 | point >> 12));
      tail(6);
      tail(0);
    } else {
      out.push_back(static_cast<char>(0xf0 | point >> 18));
      tail(12);
      tail(6);
      tail(0);
    }
  }

  const char *begin_, *at_, *end_;
  std::string problem_;
};

}  // namespace

std::optional<std::string> JsonFields::parse(std::string_view line, std::vector<JsonText>& values) const {
  if (!tokenizers::is_utf8(line)) {
    size_t at = 0;
    for (tokenizers::Utf8Char c; (c = tokenizers::decode_utf8(line.substr(at))).valid;) at += c.length;
    return fmt::format("malformed UTF-8 at byte {}", at);
  }
  Scanner scanner(line);
  values.resize(keys_.size());
  std::vector<char> found(keys_.size(), 0);  // 1: a string or a list of them; 2: something else
  std::string key;
  scanner.skip_blanks();
  if (!scanner.take('{')) {
    scanner.refuse(line.empty() ? "an empty line, where an object was expected" : "an object was expected");
    return scanner.problem();
  }
  scanner.skip_blanks();
  bool more = !scanner.take('}');
  while (more) {
    scanner.skip_blanks();
    key.clear();
    if (!scanner.string(&key)) return scanner.problem();
    scanner.skip_blanks();
    if (!scanner.take(':')) return scanner.refuse("a colon was expected"), scanner.problem();
    scanner.skip_blanks();
    size_t k = 0;
    while (k < keys_.size() && keys_[k] != key) ++k;
    if (k < keys_.size()) {
      values[k].text.clear();
      values[k].ends.clear();
      values[k].list = scanner.peek() == '[';
    }
    if (k < keys_.size() && scanner.peek() == '"') {
      found[k] = 1;
      if (!scanner.string(&values[k].text)) return scanner.problem();
    } else if (k < keys_.size() && values[k].list) {
      bool strings = true;
      if (!scanner.list(values[k], strings)) return scanner.problem();
      found[k] = strings ? 1 : 2;
    } else {
      if (k < keys_.size()) found[k] = 2;
      if (!scanner.skip_value()) return scanner.problem();
    }
    scanner.skip_blanks();
    if (scanner.take(',')) continue;
    if (!scanner.take('}'))
      return scanner.refuse("a comma or a closing brace was expected"), scanner.problem();
    more = false;
  }
  scanner.skip_blanks();
  if (!scanner.at_end()) return scanner.refuse("something stands behind the object"), scanner.problem();
  for (size_t k = 0; k < keys_.size(); ++k) {
    if (found[k] == 0) return fmt::format("has no key '{}'", keys_[k]);
    if (found[k] == 2)
      return fmt::format("the value of '{}' is neither a string nor a list of strings", keys_[k]);
  }
  return std::nullopt;
}

}  // namespace megatron
