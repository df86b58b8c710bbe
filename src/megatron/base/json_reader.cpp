#include "megatron/base/json_reader.h"

#include <bit>
#include <charconv>
#include <functional>

namespace megatron {
namespace {

constexpr int kMaxDepth = 256;

class PlainReader {
 public:
  explicit PlainReader(JsonScanner& in) : in_(in) {}

  bool any(Json& value, int depth) {
    if (depth > kMaxDepth) return false;
    switch (in_.peek()) {
      case '\0':
        return false;
      case '"': {
        std::string text;
        if (!in_.string(text)) return false;
        value = Json(std::move(text));
        return true;
      }
      case '{':
        return object(value, depth);
      case '[':
        return array(value, depth);
      case 't':
        value = Json(true);
        return in_.word("true");
      case 'f':
        value = Json(false);
        return in_.word("false");
      case 'n':
        value = Json();
        return in_.word("null");
      default:
        return number(value);
    }
  }

 private:
  bool array(Json& value, int depth) {
    in_.take('[');
    Json::Array items;
    if (!in_.take(']')) {
      do {
        if (!any(items.emplace_back(), depth + 1)) return false;
      } while (in_.take(','));
      if (!in_.take(']')) return false;
    }
    value = Json(std::move(items));
    return true;
  }

  bool object(Json& value, int depth) {
    in_.take('{');
    Json::Object items;
    if (!in_.take('}')) {
      do {
        auto& [key, item] = items.emplace_back();
        if (in_.peek() != '"' || !in_.string(key) || !in_.take(':') || !any(item, depth + 1)) return false;
      } while (in_.take(','));
      if (!in_.take('}') || has_twins(items)) return false;
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
    std::string_view text;
    bool integer = false;
    if (!in_.number(text, integer)) return false;
    const char *begin = text.data(), *end = begin + text.size();
    if (integer) {
      int64_t result = 0;
      std::from_chars(begin, end, result);
      value = Json(result);
      return true;
    }
    double result = 0;
    if (std::from_chars(begin, end, result).ec != std::errc()) return false;
    value = Json(result);
    return true;
  }

  JsonScanner& in_;
};

}  // namespace

bool read_plain_json(std::string_view text, Json& value) {
  JsonScanner in(text);
  return read_plain_value(in, value) && in.at_end();
}

bool read_plain_value(JsonScanner& in, Json& value) { return PlainReader(in).any(value, 0); }

}  // namespace megatron
