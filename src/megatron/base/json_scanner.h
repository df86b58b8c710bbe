#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace megatron {

// The words of JSON text, one after the other. What is malformed or unusual gives false, and the place is
// then undefined.
class JsonScanner {
 public:
  explicit JsonScanner(std::string_view text) : at_(text.data()), end_(text.data() + text.size()) {}

  // The next byte behind blanks; 0 at the end.
  char peek() {
    skip_blanks();
    return at_ < end_ ? *at_ : '\0';
  }
  bool at_end() { return skip_blanks(), at_ == end_; }
  bool take(char c) {
    if (at_ < end_ && *at_ == c) [[likely]] {
      ++at_;
      return true;
    }
    skip_blanks();
    if (at_ == end_ || *at_ != c) return false;
    ++at_;
    return true;
  }
  bool word(std::string_view text) {
    if (static_cast<size_t>(end_ - at_) < text.size() || std::string_view(at_, text.size()) != text)
      return false;
    at_ += text.size();
    return true;
  }

  // The text of a number with at most 18 digits before the point, and whether it is an integer.
  bool number(std::string_view& text, bool& integer) {
    const char* begin = at_;
    const auto digits = [&] {
      const char* first = at_;
      while (at_ < end_ && *at_ >= '0' && *at_ <= '9') ++at_;
      return at_ - first;
    };
    if (at_ < end_ && *at_ == '-') ++at_;
    const char* first = at_;
    const ptrdiff_t whole = digits();
    if (whole == 0 || whole > 18 || (*first == '0' && whole > 1)) return false;
    integer = true;
    if (at_ < end_ && *at_ == '.') {
      integer = false;
      ++at_;
      if (digits() == 0) return false;
    }
    if (at_ < end_ && (*at_ == 'e' || *at_ == 'E')) {
      integer = false;
      ++at_;
      if (at_ < end_ && (*at_ == '+' || *at_ == '-')) ++at_;
      if (digits() == 0) return false;
    }
    text = {begin, static_cast<size_t>(at_ - begin)};
    return true;
  }

  // Appends a string's characters; the place is its quotation mark.
  bool string(std::string& out) {
    const char* run = ++at_;
    while (plain_run()) {
      out.append(run, at_);
      if (*at_++ == '"') return true;
      if (!escape(out)) return false;
      run = at_;
    }
    return false;
  }
  // A string as it stands in the text where nothing is escaped, else put into `unescaped`.
  bool view(std::string_view& out, std::string& unescaped) {
    const char* run = ++at_;
    if (!plain_run()) return false;
    if (*at_ == '"') {
      out = {run, static_cast<size_t>(at_++ - run)};
      return true;
    }
    at_ = run - 1;
    unescaped.clear();
    if (!string(unescaped)) return false;
    out = unescaped;
    return true;
  }

 private:
  void skip_blanks() {
    while (at_ < end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\t' || *at_ == '\r')) {
      ++at_;
      for (uint64_t eight = 0; end_ - at_ >= 8; at_ += 8) {  // indented text has many spaces
        std::memcpy(&eight, at_, 8);
        if (eight != 0x2020202020202020u) break;
      }
    }
  }
  // Goes to the next quotation mark or backslash; false at a control character, broken UTF-8 or the end.
  bool plain_run() {
    while (at_ < end_) {
      const auto c = static_cast<unsigned char>(*at_);
      if (c == '"' || c == '\\') return true;
      if (c < 0x20) return false;
      if (c < 0x80)
        ++at_;
      else if (!multibyte())
        return false;
    }
    return false;
  }
  // One well-formed character of several bytes.
  bool multibyte() {
    const auto* p = reinterpret_cast<const unsigned char*>(at_);
    const ptrdiff_t left = end_ - at_;
    const auto trail = [&](int i, unsigned low = 0x80, unsigned high = 0xBF) {
      return i < left && p[i] >= low && p[i] <= high;
    };
    int length = 0;
    if (p[0] >= 0xC2 && p[0] < 0xE0)
      length = trail(1) ? 2 : 0;
    else if (p[0] >= 0xE0 && p[0] < 0xF0)
      length = trail(1, p[0] == 0xE0 ? 0xA0 : 0x80, p[0] == 0xED ? 0x9F : 0xBF) && trail(2) ? 3 : 0;
    else if (p[0] >= 0xF0 && p[0] < 0xF5)
      length =
          trail(1, p[0] == 0xF0 ? 0x90 : 0x80, p[0] == 0xF4 ? 0x8F : 0xBF) && trail(2) && trail(3) ? 4 : 0;
    at_ += length;
    return length > 0;
  }

  bool hex4(uint32_t& value) {
    if (end_ - at_ < 4) return false;
    value = 0;
    const auto [last, fault] = std::from_chars(at_, at_ + 4, value, 16);
    if (fault != std::errc() || last != at_ + 4) return false;
    at_ += 4;
    return true;
  }

  bool escape(std::string& out) {
    if (at_ == end_) return false;
    constexpr std::string_view names = "\"\\/bfnrt", bytes = "\"\\/\b\f\n\r\t";
    const char c = *at_++;
    if (const size_t known = names.find(c); known != std::string_view::npos) {
      out += bytes[known];
      return true;
    }
    uint32_t point = 0;
    if (c != 'u' || !hex4(point)) return false;
    if (point >= 0xD800 && point < 0xE000) {
      uint32_t low = 0;
      if (point >= 0xDC00 || !word("\\u") || !hex4(low) || low < 0xDC00 || low >= 0xE000) return false;
      point = 0x10000 + ((point - 0xD800) << 10) + (low - 0xDC00);
    }
    const auto put = [&](uint32_t byte) { out += static_cast<char>(byte); };
    if (point < 0x80) {
      put(point);
      return true;
    }
    if (point < 0x800) {
      put(0xC0 | point >> 6);
    } else if (point < 0x10000) {
      put(0xE0 | point >> 12);
      put(0x80 | (point >> 6 & 63));
    } else {
      put(0xF0 | point >> 18);
      put(0x80 | (point >> 12 & 63));
      put(0x80 | (point >> 6 & 63));
    }
    put(0x80 | (point & 63));
    return true;
  }

  const char *at_, *end_;
};

}  // namespace megatron
