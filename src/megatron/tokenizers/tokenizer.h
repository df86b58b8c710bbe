#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace megatron {

using TokenId = int32_t;

// Characters [begin, end) of a text, counted in code points.
struct CharRange {
  uint32_t begin = 0, end = 0;
  friend bool operator==(const CharRange&, const CharRange&) = default;
};

// A text's tokens with their pieces and places. Tokens that a template adds have the place [0, 0).
struct Encoding {
  std::vector<TokenId> ids;
  std::vector<std::string> pieces;
  std::vector<CharRange> offsets;
};

// Tokens with a meaning of their own; -1 where a tokenizer has none.
struct SpecialIds {
  TokenId bos = -1, eos = -1, eod = -1, pad = -1, unk = -1, cls = -1, sep = -1, mask = -1;
};

// Memory that speeds up a thread's encoding: words that it has met before. Results never depend on it.
class EncodeMemory {
 public:
  virtual ~EncodeMemory() = default;
};

// What a kind of tokenizer implements; programs use Tokenizer.
class TokenizerBackend {
 public:
  virtual ~TokenizerBackend() = default;
  // Appends the ids of a text. Malformed UTF-8 counts as U+FFFD. `memory` may be null.
  virtual void encode(std::string_view text, bool add_special_tokens, EncodeMemory* memory,
                      std::vector<TokenId>& ids) const = 0;
  virtual Encoding encode_with_offsets(std::string_view text, bool add_special_tokens) const = 0;
  virtual std::string decode(std::span<const TokenId> ids, bool skip_special_tokens) const = 0;
  virtual std::unique_ptr<EncodeMemory> make_memory(size_t) const { return nullptr; }
  virtual int64_t vocab_size() const = 0;
  virtual std::optional<TokenId> id_of(std::string_view piece) const = 0;
  virtual std::string piece_of(TokenId id) const = 0;
  virtual SpecialIds special_ids() const = 0;
  virtual bool is_special(TokenId id) const = 0;
};

// Text to tokens and back. A value: copies share what was loaded, and any number of threads may use one.
class Tokenizer {
 public:
  explicit Tokenizer(std::shared_ptr<const TokenizerBackend> kind) : kind_(std::move(kind)) {}

  // Ids of a text; with `add_special_tokens` also those that the model's own template puts around it (BOS,
  // [CLS], …). Special tokens written in the text are recognised where the tokenizer itself does so.
  // Malformed UTF-8 counts as U+FFFD.
  std::vector<TokenId> encode(std::string_view text, bool add_special_tokens = false) const;
  // The same with pieces and places.
  Encoding encode_with_offsets(std::string_view text, bool add_special_tokens = false) const;
  // Many texts on some threads. The result does not depend on their number.
  std::vector<std::vector<TokenId>> encode_batch(std::span<const std::string> texts,
                                                 bool add_special_tokens = false, int threads = 1) const;

  // Always valid UTF-8: bytes that make no character become U+FFFD. Ids that are out of range are an Error.
  std::string decode(std::span<const TokenId> ids, bool skip_special_tokens = false) const;

  // One more than the highest id, special tokens included.
  int64_t vocab_size() const { return kind_->vocab_size(); }
  std::optional<TokenId> id_of(std::string_view piece) const { return kind_->id_of(piece); }
  // The piece of an id; "" where it has none.
  std::string piece_of(TokenId id) const { return kind_->piece_of(id); }
  SpecialIds special_ids() const { return kind_->special_ids(); }
  bool is_special(TokenId id) const { return kind_->is_special(id); }

  const TokenizerBackend& kind() const { return *kind_; }

 private:
  std::shared_ptr<const TokenizerBackend> kind_;
};

// Encodes one text after the other on one thread, faster than Tokenizer::encode as it remembers words.
class Encoder {
 public:
  static constexpr size_t kDefaultMemory = size_t{192} << 20;

  // `memory_bytes` bounds what it remembers.
  explicit Encoder(Tokenizer tokenizer, size_t memory_bytes = kDefaultMemory);

  // Appends the ids of a text.
  void encode(std::string_view text, std::vector<TokenId>& ids, bool add_special_tokens = false);

 private:
  Tokenizer tokenizer_;
  std::unique_ptr<EncodeMemory> memory_;
};

// Decodes tokens as they come. What it returns, joined, is the text of all; a character is held back until
// all of its bytes are there, so every part is valid UTF-8.
class StreamDecoder {
 public:
  explicit StreamDecoder(Tokenizer tokenizer, bool skip_special_tokens = false)
      : tokenizer_(std::move(tokenizer)), skip_special_tokens_(skip_special_tokens) {}

  // The text that this token completes; often "".
  std::string push(TokenId id);
  // What was held back.
  std::string finish();

 private:
  std::string take(bool all);

  Tokenizer tokenizer_;
  bool skip_special_tokens_;
  std::vector<TokenId> ids_;  // those that still decide about text to come
  size_t told_ = 0;           // of ids_, how many were returned as text
};

}  // namespace megatron
