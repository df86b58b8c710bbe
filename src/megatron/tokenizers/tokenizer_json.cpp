#include "megatron/tokenizers/tokenizer_json.h"

#include <algorithm>
#include <charconv>

#include "megatron/base/json_reader.h"

namespace megatron::tokenizers {
namespace {

// Reads what published files have. False for anything else, which Json::parse() then reads or refuses.
class BpeReader {
 public:
  explicit BpeReader(std::string_view text) : in_(text) {
    bpe_.merges.reserve(std::min<size_t>(text.size() / 48, 1 << 19));  // so many fit in
  }

  bool document(Json& settings) {
    const bool read = object([&](std::string& key) {
      Json value;
      if (settings.find(key)) return false;  // a key that stands twice
      if (key == "model" ? !model(value) : !read_plain_value(in_, value)) return false;
      settings[key] = std::move(value);
      return true;
    });
    return read && in_.at_end() && has_vocabulary_ && has_merges_;
  }
  BpeText take() { return std::move(bpe_); }

 private:
  // Calls `item(key)` for each key of an object, which reads the value.
  template <class Item>
  bool object(Item item) {
    if (!in_.take('{')) return false;
    if (in_.take('}')) return true;
    std::string key;
    do {
      key.clear();
      if (in_.peek() != '"' || !in_.string(key) || !in_.take(':') || !item(key)) return false;
    } while (in_.take(','));
    return in_.take('}');
  }

  bool model(Json& settings) {
    settings = Json::object();
    bool bpe = false;
    return object([&](std::string& key) {
      if (settings.find(key)) return false;
      if (key == "vocab") return bpe && !std::exchange(has_vocabulary_, true) && vocabulary();
      if (key == "merges") return bpe && !std::exchange(has_merges_, true) && merges();
      Json value;
      if (!read_plain_value(in_, value)) return false;
      if (key == "type") bpe = value.is_string() && value.as_string() == "BPE";
      settings[key] = std::move(value);
      return true;
    });
  }

  bool vocabulary() {
    constexpr int64_t kMaxId = (1 << 22) - 1;  // what Vocabulary takes
    if (!in_.take('{')) return false;
    std::vector<std::pair<std::string_view, TokenId>> pieces;
    if (!in_.take('}')) {
      do {
        std::string_view piece, digits;
        bool integer = false;
        int64_t id = -1;
        if (!name(piece) || !in_.take(':')) return false;
        in_.peek();
        if (!in_.number(digits, integer) || !integer) return false;
        std::from_chars(digits.data(), digits.data() + digits.size(), id);
        if (id < 0 || id > kMaxId) return false;
        pieces.emplace_back(piece, static_cast<TokenId>(id));
      } while (in_.take(','));
      if (!in_.take('}')) return false;
    }
    bpe_.vocabulary.reserve(pieces.size());
    for (const auto& [piece, id] : pieces) bpe_.vocabulary.add(piece, id);
    return bpe_.vocabulary.count() == pieces.size();  // else a piece stands twice
  }

  // A string that lives as long as the text.
  bool name(std::string_view& out) {
    if (in_.peek() != '"' || !in_.view(out, unescaped_)) return false;
    if (out.data() == unescaped_.data()) out = bpe_.unescaped.emplace_back(unescaped_);
    return true;
  }

  bool merges() {
    if (!in_.take('[')) return false;
    if (in_.take(']')) return true;
    do {
      MergeNames& merge = bpe_.merges.emplace_back();
      if (in_.peek() == '[') {
        if (!in_.take('[') || !name(merge.left) || !in_.take(',') || !name(merge.right) || !in_.take(']'))
          return false;
      } else {
        std::string_view text;
        if (!name(text)) return false;
        const auto pair = split_merge(text);
        if (!pair) return false;
        merge = *pair;
      }
    } while (in_.take(','));
    return in_.take(']');
  }

  JsonScanner in_;
  BpeText bpe_;
  bool has_vocabulary_ = false, has_merges_ = false;
  std::string unescaped_;
};

}  // namespace

TokenizerJson TokenizerJson::parse(std::string_view text, std::string_view origin) {
  TokenizerJson result{Json::object()};
  if (BpeReader reader(text); reader.document(result.settings))
    result.bpe = reader.take();
  else
    result.settings = Json::parse(text, origin);
  return result;
}

}  // namespace megatron::tokenizers
