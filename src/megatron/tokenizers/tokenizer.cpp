#include "megatron/tokenizers/tokenizer.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <limits>
#include <thread>

#include "megatron/base/error.h"

namespace megatron {
namespace {

// Places in a text have 32 bits.
constexpr size_t kMostBytes = std::numeric_limits<uint32_t>::max();

void check_size(std::string_view text) {
  if (text.size() > kMostBytes)
    throw ConfigError(
        fmt::format("tokenizer: a text has {} bytes, expected at most {}; encode it in parts, cut at ends of "
                    "lines say",
                    text.size(), kMostBytes));
}

}  // namespace

std::vector<TokenId> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  check_size(text);
  std::vector<TokenId> ids;
  kind_->encode(text, add_special_tokens, nullptr, ids);
  return ids;
}

Encoding Tokenizer::encode_with_offsets(std::string_view text, bool add_special_tokens) const {
  check_size(text);
  return kind_->encode_with_offsets(text, add_special_tokens);
}

std::vector<std::vector<TokenId>> Tokenizer::encode_batch(std::span<const std::string> texts,
                                                          bool add_special_tokens, int threads) const {
  std::vector<std::vector<TokenId>> results(texts.size());
  std::atomic<size_t> next{0};
  std::exception_ptr fault;
  std::atomic<bool> failed{false};
  const auto work = [&] {
    try {
      Encoder encoder(*this);
      for (size_t i; !failed && (i = next++) < texts.size();)
        encoder.encode(texts[i], results[i], add_special_tokens);
    } catch (...) {
      if (!failed.exchange(true)) fault = std::current_exception();
    }
  };
  std::vector<std::thread> helpers;
  const auto wanted = std::min<size_t>(texts.size(), static_cast<size_t>(std::max(1, threads)));
  for (size_t i = 1; i < wanted; ++i) helpers.emplace_back(work);
  work();
  for (std::thread& helper : helpers) helper.join();
  if (fault) std::rethrow_exception(fault);
  return results;
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special_tokens) const {
  const int64_t size = vocab_size();
  for (TokenId id : ids)
    if (id < 0 || id >= size)
      throw ConfigError(fmt::format("tokenizer: id {} is out of range (expected 0 to {})", id, size - 1));
  return kind_->decode(ids, skip_special_tokens);
}

Encoder::Encoder(Tokenizer tokenizer, size_t memory_bytes)
    : tokenizer_(std::move(tokenizer)), memory_(tokenizer_.kind().make_memory(memory_bytes)) {}

void Encoder::encode(std::string_view text, std::vector<TokenId>& ids, bool add_special_tokens) {
  check_size(text);
  tokenizer_.kind().encode(text, add_special_tokens, memory_.get(), ids);
}

std::string StreamDecoder::push(TokenId id) {
  ids_.push_back(id);
  return take(false);
}

std::string StreamDecoder::finish() {
  std::string rest = take(true);
  ids_.clear();
  told_ = 0;
  return rest;
}

// Text of a token may depend on the token before it (spaces between words), so those of the last part stay in
// front.
std::string StreamDecoder::take(bool all) {
  if (told_ == ids_.size()) return "";
  const std::string before = tokenizer_.decode(std::span(ids_).first(told_), skip_special_tokens_);
  std::string text = tokenizer_.decode(ids_, skip_special_tokens_);
  if (text.size() <= before.size() || (!all && text.ends_with("\xEF\xBF\xBD"))) return "";
  text.erase(0, before.size());
  ids_.erase(ids_.begin(), ids_.begin() + static_cast<ptrdiff_t>(told_));
  told_ = ids_.size();
  return text;
}

}  // namespace megatron
