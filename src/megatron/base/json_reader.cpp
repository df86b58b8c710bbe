#include "megatron/base/json_reader.h"

#include <bit>
#include <charconv>
#include <cstddef>
#include <functional>

namespace megatron {
namespace {

constexpr int kMaxDepth = 256;

class PlainReader {
 public:
  explicit PlainReader(std::string_view text) : at_(text.data()), end_(text.data() + text.size()) {}

  bool document(Json& value) {
    if (!any(value, 0)) return false;
    skip_blanks();
    return at_ == end_;
  }

 private:
  void skip_blanks() {
    while (at_ < end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\t' || *at_ == '\r')) ++at_;
  }
  bool take(char c) {
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

  bool any(Json& value, int depth) {
    if (depth > kMaxDepth) return false;
    skip_blanks();
    if (at_ == end_) return false;
    switch (*at_) {
      case '"': {
        std::string text;
        if (!string(text)) return false;
        value = Json(std::move(text));
        return true;
      }
      case '{':
        return object(value, depth);
      case '[':
        return array(value, depth);
      case 't':
        value = Json(true);
        return word("true");
      case 'f':
        value = Json(false);
        return word("false");
      case 'n':
        value = Json();
        return word("null");
      default:
        return number(value);
    }
  }

  bool array(Json& value, int depth) {
    ++at_;
    Json::Array items;
    if (!take(']')) {
      do {
        if (!any(items.emplace_back(), depth + 1)) return false;
      } while (take(','));
      if (!take(']')) return false;
    }
    value = Json(std::move(items));
    return true;
  }

  bool object(Json& value, int depth) {
    ++at_;
    Json::Object items;
    if (!take('}')) {
      do {
        auto& [key, item] = items.emplace_back();
        skip_blanks();
        if (at_ == end_ || *at_ != '"' || !string(key) || !take(':') || !any(item, depth + 1)) return false;
      } while (take(','));
      if (!take('}') || has_twins(items)) return false;
    }
    value = Json(std::move(items));
    return true;
  }

  // Whether a key stands twice.
  static bool has_twins(const Json::Object& items) {
    if (items.size() <= 8) {
      for (size_t i = 1; i < items.size(); ++i)
        for (size_t j = 0; j < i; ++j)
          if (items[i].first == items[j].first) return true;
      return false;
    }
    std::vector<uint32_t> places(std::bit_ceil(2 * items.size()));  // one more than a key's
    for (size_t i = 0; i < items.size(); ++i) {
      size_t slot = std::hash<std::string_view>()(items[i].first) & (places.size() - 1);
      for (; places[slot] != 0; slot = (slot + 1) & (places.size() - 1))
        if (items[places[slot] - 1].first == items[i].first) return true;
      places[slot] = static_cast<uint32_t>(i + 1);
    }
    return false;
  }

  bool number(Json& value) {
    const char* begin = at_;
    const auto digits = [&] {
      const char* first = at_;
      while (at_ < end_ && *at_ >= '0' && *at_ <= '9') ++at_;
      return at_ - first;
    };
    if (*at_ == '-') ++at_;
    const char* first = at_;
    const ptrdiff_t whole = digits();
    if (whole == 0 || whole > 18 || (*first == '0' && whole > 1)) return false;
    bool integer = true;
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
    if (integer) {
      int64_t result = 0;
      std::from_chars(begin, at_, result);
      value = Json(result);
      return true;
    }
    double result = 0;
    if (std::from_chars(begin, at_, result).ec != std::errc()) return false;
    value = Json(result);
    return true;
  }

  bool string(std::string& out) {
    const char* run = ++at_;
    while (at_ < end_) {
      const auto c = static_cast<unsigned char>(*at_);
      if (c == '"') {
        out.append(run, at_);
        ++at_;
        return true;
      }
      if (c == '\\') {
        out.append(run, at_);
        ++at_;
        if (!escape(out)) return false;
        run = at_;
      } else if (c < 0x20) {
        return false;
      } else if (c < 0x80) {
        ++at_;
      } else if (!multibyte()) {
        return false;
      }
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

}  // namespace

bool read_plain_json(std::string_view text, Json& value) { return PlainReader(text).document(value); }

}  // namespace megatron
