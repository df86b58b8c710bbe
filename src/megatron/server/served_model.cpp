#include "megatron/server/served_model.h"

#include "megatron/tokenizers/unicode/utf8.h"

namespace megatron {

void ServedModel::prepare() {
  vocabulary =
      std::make_shared<const ConstraintVocabulary>(megatron::token_bytes(tokenizer), end_tokens, vocab_size);
}

std::string ServedModel::token_bytes(int64_t token) const {
  if (token < 0 || token >= std::ssize(vocabulary->bytes)) return "";
  const std::string& bytes = vocabulary->bytes[static_cast<size_t>(token)];
  return bytes.empty() ? tokenizer.piece_of(static_cast<TokenId>(token)) : bytes;
}

std::string ServedModel::token_text(int64_t token) const {
  const std::string bytes = token_bytes(token);
  if (tokenizers::is_utf8(bytes)) return bytes;
  std::string text = "bytes:";
  for (char c : bytes) text += fmt::format("\\x{:02x}", static_cast<uint8_t>(c));
  return text;
}

std::vector<int64_t> ServedModel::encode(const std::string& text, bool add_special_tokens) const {
  const std::vector<TokenId> ids = tokenizer.encode(text, add_special_tokens);
  return {ids.begin(), ids.end()};
}

}  // namespace megatron
