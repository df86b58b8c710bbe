#include "megatron/tokenizers/decoders/decoder.h"

#include <optional>

#include "megatron/base/error.h"
#include "megatron/tokenizers/models/byte_characters.h"
#include "megatron/tokenizers/settings.h"
#include "megatron/tokenizers/split_pattern.h"
#include "megatron/tokenizers/unicode/utf8.h"

namespace megatron::tokenizers {
namespace {

using Pieces = std::vector<std::string>;

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  if (from.empty()) return;
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
}

// Takes back the spaces that Bert's tokenizer puts before punctuation.
void clean_up(std::string& text) {
  static constexpr std::pair<std::string_view, std::string_view> kRules[] = {
      {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
      {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : kRules) replace_all(text, from, to);
}

class ByteLevelDecoder : public Decoder {
 public:
  Pieces apply(Pieces pieces) const override {
    std::string bytes;
    for (const std::string& piece : pieces) bytes += bytes_of_piece(piece).value_or(piece);
    return {to_utf8_lossy(bytes)};
  }
  bool joins_bytes() const override { return true; }
};

class WordPieceDecoder : public Decoder {
 public:
  explicit WordPieceDecoder(const Json& settings)
      : prefix_(string_or(settings, "prefix", "##")), cleanup_(bool_or(settings, "cleanup", true)) {}
  Pieces apply(Pieces pieces) const override {
    for (size_t i = 0; i < pieces.size(); ++i) {
      if (i != 0) {
        if (pieces[i].starts_with(prefix_))
          pieces[i].erase(0, prefix_.size());
        else
          pieces[i].insert(0, " ");
      }
      if (cleanup_) clean_up(pieces[i]);
    }
    return pieces;
  }

 private:
  std::string prefix_;
  bool cleanup_;
};

class MetaspaceDecoder : public Decoder {
 public:
  explicit MetaspaceDecoder(const Json& settings)
      : replacement_(one_character(settings, "replacement", "▁")),
        prepended_(string_or(settings, "prepend_scheme", "always") != "never" &&
                   bool_or(settings, "add_prefix_space", true)) {}
  Pieces apply(Pieces pieces) const override {
    for (size_t i = 0; i < pieces.size(); ++i)
      replace_all(pieces[i], replacement_, i == 0 && prepended_ ? "" : " ");
    return pieces;
  }

 private:
  std::string replacement_;
  bool prepended_;
};

class BpeDecoder : public Decoder {
 public:
  explicit BpeDecoder(const Json& settings) : suffix_(string_or(settings, "suffix", "</w>")) {}
  Pieces apply(Pieces pieces) const override {
    for (size_t i = 0; i < pieces.size(); ++i)
      replace_all(pieces[i], suffix_, i + 1 == pieces.size() ? "" : " ");
    return pieces;
  }

 private:
  std::string suffix_;
};

// Joins runs of <0x..> pieces to characters; each byte of a malformed run becomes U+FFFD.
class ByteFallbackDecoder : public Decoder {
 public:
  Pieces apply(Pieces pieces) const override {
    Pieces result;
    std::string bytes;
    const auto flush = [&] {
      if (bytes.empty()) return;
      if (is_utf8(bytes))
        result.push_back(bytes);
      else
        result.insert(result.end(), bytes.size(), "\xEF\xBF\xBD");
      bytes.clear();
    };
    for (std::string& piece : pieces) {
      if (const auto byte = byte_of(piece)) {
        bytes += static_cast<char>(*byte);
      } else {
        flush();
        result.push_back(std::move(piece));
      }
    }
    flush();
    return result;
  }

 private:
  static std::optional<int> byte_of(std::string_view piece) {
    if (piece.size() != 6 || !piece.starts_with("<0x") || piece[5] != '>') return std::nullopt;
    const auto digit = [](char c) {
      return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
    };
    const int high = piece[3] == '+' ? 0 : digit(piece[3]), low = digit(piece[4]);
    return high < 0 || low < 0 ? std::nullopt : std::optional(high * 16 + low);
  }
};

class FuseDecoder : public Decoder {
 public:
  Pieces apply(Pieces pieces) const override {
    std::string all;
    for (const std::string& piece : pieces) all += piece;
    return {all};
  }
};

class StripDecoder : public Decoder {
 public:
  explicit StripDecoder(const Json& settings)
      : content_(one_character(settings, "content", " ")),
        start_(settings.at("start").as_int()),
        stop_(settings.at("stop").as_int()) {}
  Pieces apply(Pieces pieces) const override {
    for (std::string& piece : pieces) {
      std::string_view text = piece;
      for (int64_t i = 0; i < start_ && text.starts_with(content_); ++i) text.remove_prefix(content_.size());
      for (int64_t i = 0; i < stop_ && text.ends_with(content_); ++i) text.remove_suffix(content_.size());
      piece = std::string(text);
    }
    return pieces;
  }

 private:
  std::string content_;
  int64_t start_, stop_;
};

class ReplaceDecoder : public Decoder {
 public:
  explicit ReplaceDecoder(const Json& settings)
      : pattern_(settings.at("pattern")), content_(settings.at("content").as_string()) {}
  Pieces apply(Pieces pieces) const override {
    for (std::string& piece : pieces) {
      AlignedText text(piece, 0, false);
      text.replace(pattern_.matches(piece), content_);
      piece = text.text();
    }
    return pieces;
  }

 private:
  SplitPattern pattern_;
  std::string content_;
};

class CtcDecoder : public Decoder {
 public:
  explicit CtcDecoder(const Json& settings)
      : pad_(string_or(settings, "pad_token", "<pad>")),
        delimiter_(string_or(settings, "word_delimiter_token", "|")),
        cleanup_(bool_or(settings, "cleanup", true)) {}
  Pieces apply(Pieces pieces) const override {
    Pieces result;
    for (size_t i = 0; i < pieces.size(); ++i) {
      if (i > 0 && pieces[i] == pieces[i - 1]) continue;
      std::string piece = pieces[i];
      replace_all(piece, pad_, "");
      if (cleanup_) {
        clean_up(piece);
        replace_all(piece, delimiter_, " ");
      }
      if (!piece.empty()) result.push_back(std::move(piece));
    }
    return result;
  }

 private:
  std::string pad_, delimiter_;
  bool cleanup_;
};

class DecoderSequence : public Decoder {
 public:
  explicit DecoderSequence(const Json& settings) {
    for (const Json& part : settings.at("decoders").as_array())
      if (auto decoder = make_decoder(part)) parts_.push_back(std::move(decoder));
  }
  Pieces apply(Pieces pieces) const override {
    for (const auto& part : parts_) pieces = part->apply(std::move(pieces));
    return pieces;
  }

 private:
  std::vector<std::unique_ptr<const Decoder>> parts_;
};

}  // namespace

std::unique_ptr<const Decoder> make_decoder(const Json& settings) {
  if (settings.is_null()) return nullptr;
  const std::string& type = settings.at("type").as_string();
  if (type == "ByteLevel") return std::make_unique<ByteLevelDecoder>();
  if (type == "WordPiece") return std::make_unique<WordPieceDecoder>(settings);
  if (type == "Metaspace") return std::make_unique<MetaspaceDecoder>(settings);
  if (type == "BPEDecoder") return std::make_unique<BpeDecoder>(settings);
  if (type == "ByteFallback") return std::make_unique<ByteFallbackDecoder>();
  if (type == "Fuse") return std::make_unique<FuseDecoder>();
  if (type == "Strip") return std::make_unique<StripDecoder>(settings);
  if (type == "Replace") return std::make_unique<ReplaceDecoder>(settings);
  if (type == "CTC") return std::make_unique<CtcDecoder>(settings);
  if (type == "Sequence") return std::make_unique<DecoderSequence>(settings);
  fail("tokenizer.json: decoder '{}' is not known; remove it or ask for it in an issue", type);
}

}  // namespace megatron::tokenizers
