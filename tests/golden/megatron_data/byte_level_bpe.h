#pragma once

#include <map>
#include <string>
#include <vector>

#include "megatron/base/json.h"

namespace megatron::testing {

// A byte-level BPE of a tokenizer.json, just enough for the texts of the archive: letters are ASCII or
// anything beyond it.
class ByteLevelBpe {
 public:
  explicit ByteLevelBpe(const std::string& path) {
    const Json json = Json::read(path);
    for (const Json& token : json.at("added_tokens").as_array())
      special_.emplace_back(token.at("content").as_string(), token.at("id").as_int());
    for (const auto& [piece, id] : json.at("model").at("vocab").as_object()) vocab_[piece] = id.as_int();
    for (const Json& merge : json.at("model").at("merges").as_array()) {
      const auto rank = static_cast<int64_t>(ranks_.size());
      ranks_[{merge[0].as_string(), merge[1].as_string()}] = rank;
    }
  }

  std::vector<int64_t> encode(const std::string& text) const {
    std::vector<int64_t> ids;
    std::string plain;
    for (size_t at = 0; at < text.size();) {
      bool found = false;
      for (const auto& [piece, id] : special_) {
        if (text.compare(at, piece.size(), piece) != 0) continue;
        add_plain(plain, ids);
        plain.clear();
        ids.push_back(id);
        at += piece.size();
        found = true;
        break;
      }
      if (!found) plain += text[at++];
    }
    add_plain(plain, ids);
    return ids;
  }

 private:
  static int kind(char c) {  // white space, letter, digit, other
    const auto u = static_cast<unsigned char>(c);
    if (c == ' ' || (c >= '\t' && c <= '\r')) return 0;
    if (u >= 0x80 || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) return 1;
    return c >= '0' && c <= '9' ? 2 : 3;
  }

  // GPT-2's pattern: a word takes one blank before it; white space before a word keeps all but its last
  // character apart.
  void add_plain(const std::string& text, std::vector<int64_t>& ids) const {
    for (size_t at = 0; at < text.size();) {
      size_t end = at;
      const size_t word = text[at] == ' ' && at + 1 < text.size() ? at + 1 : at;
      if (kind(text[word]) != 0) {
        end = word;
        while (end < text.size() && kind(text[end]) == kind(text[word])) ++end;
      } else {
        while (end < text.size() && kind(text[end]) == 0) ++end;
        if (end < text.size() && end - at > 1) --end;
      }
      add_word(text.substr(at, end - at), ids);
      at = end;
    }
  }

  // The character that stands for a byte.
  static std::string letter(unsigned char byte) {
    int point = byte, moved = 0;
    for (int b = 0; b < 256; ++b) {
      const bool shown = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
      if (b == byte && !shown) point = 256 + moved;
      if (!shown) ++moved;
    }
    if (point < 0x80) return std::string(1, static_cast<char>(point));
    return {static_cast<char>(0xc0 | point >> 6), static_cast<char>(0x80 | (point & 0x3f))};
  }

  void add_word(const std::string& word, std::vector<int64_t>& ids) const {
    std::vector<std::string> pieces;
    for (char c : word) pieces.push_back(letter(static_cast<unsigned char>(c)));
    while (true) {
      size_t best = pieces.size();
      int64_t lowest = INT64_MAX;
      for (size_t i = 0; i + 1 < pieces.size(); ++i) {
        const auto found = ranks_.find({pieces[i], pieces[i + 1]});
        if (found != ranks_.end() && found->second < lowest) lowest = found->second, best = i;
      }
      if (best == pieces.size()) break;
      pieces[best] += pieces[best + 1];
      pieces.erase(pieces.begin() + static_cast<int64_t>(best) + 1);
    }
    for (const std::string& piece : pieces) ids.push_back(vocab_.at(piece));
  }

  std::vector<std::pair<std::string, int64_t>> special_;
  std::map<std::string, int64_t> vocab_;
  std::map<std::pair<std::string, std::string>, int64_t> ranks_;
};

}  // namespace megatron::testing
