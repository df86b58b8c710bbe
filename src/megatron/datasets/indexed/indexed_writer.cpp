#include "megatron/datasets/indexed/indexed_writer.h"

#include <cstring>
#include <limits>

#include "megatron/base/error.h"
#include "megatron/datasets/indexed/idx_format.h"
#include "megatron/datasets/indexed/indexed_dataset.h"

namespace megatron {

namespace {

template <class Token>
void encode(std::span<const Token> tokens, TokenType type, std::string_view origin,
            std::vector<std::byte>& out) {
  visit_type(type, [&]<class T>(T*) {
    const size_t begin = out.size();
    out.resize(begin + tokens.size() * sizeof(T));
    std::byte* target = out.data() + begin;
    bool exact = true;
    for (Token token : tokens) {
      const T value = static_cast<T>(token);
      if constexpr (std::is_integral_v<T>) exact &= static_cast<int64_t>(value) == token;
      std::memcpy(target, &value, sizeof(T));
      target += sizeof(T);
    }
    if (exact) return;
    for (Token token : tokens) {
      if constexpr (std::is_integral_v<T>)
        require(static_cast<int64_t>(static_cast<T>(token)) == token,
                "{}: token {} does not fit into {}; write a wider type", origin, token, name_of(type));
    }
  });
}

}  // namespace

void encode_tokens(std::span<const int64_t> tokens, TokenType type, std::string_view origin,
                   std::vector<std::byte>& out) {
  encode(tokens, type, origin, out);
}

void encode_tokens(std::span<const int32_t> tokens, TokenType type, std::string_view origin,
                   std::vector<std::byte>& out) {
  encode(tokens, type, origin, out);
}

IndexedWriter::IndexedWriter(std::string prefix, TokenType type, bool multimodal)
    : prefix_(std::move(prefix)),
      type_(type),
      multimodal_(multimodal),
      bin_(prefix_ + ".bin"),
      idx_(prefix_ + ".idx") {}

void IndexedWriter::add_length(int64_t length, int8_t mode) {
  require(length <= std::numeric_limits<int32_t>::max(), "{}: a sequence of {} tokens, at most 2^31-1 fit",
          prefix_, length);
  lengths_.push_back(static_cast<int32_t>(length));
  if (multimodal_) modes_.push_back(mode);
  tokens_ += length;
}

void IndexedWriter::add_sequence(std::span<const int64_t> tokens, int8_t mode) {
  encoded_.clear();
  encode_tokens(tokens, type_, prefix_, encoded_);
  bin_.write(encoded_);
  add_length(static_cast<int64_t>(tokens.size()), mode);
}

void IndexedWriter::add_documents(std::span<const std::byte> bytes, std::span<const int32_t> lengths,
                                  std::span<const int32_t> sequences) {
  size_t total = 0;
  for (int32_t length : lengths) total += static_cast<size_t>(length) * size_of(type_);
  require(total == bytes.size(), "{}: {} encoded bytes, expected {} by their lengths", prefix_, bytes.size(),
          total);
  bin_.write(bytes);
  int64_t end = this->sequences();
  for (int32_t length : lengths) add_length(length, 0);
  for (int32_t count : sequences) document_index_.push_back(end += count);
  require(end == this->sequences(), "{}: documents of {} sequences, expected {}", prefix_, end,
          this->sequences());
}

void IndexedWriter::end_document() { document_index_.push_back(sequences()); }

void IndexedWriter::add_dataset(const std::string& prefix) {
  const IndexedDataset other(prefix, {.multimodal = multimodal_});
  require(other.type() == type_, "{}: its tokens are {}, expected {} as in {}", prefix, name_of(other.type()),
          name_of(type_), prefix_);
  other.verify();
  const int64_t before = sequences();
  for (int64_t i = 0; i < other.sequences(); ++i)
    add_length(other.lengths()[i], multimodal_ ? other.modes()[i] : int8_t{0});
  for (int64_t i = 1; i <= other.documents(); ++i)
    document_index_.push_back(before + other.document_index()[i]);
  const MappedFile bin(prefix + ".bin");
  bin_.write(bin.bytes());
}

void IndexedWriter::commit() {
  idx_.write(kIdxMagic);
  auto write = [&](const auto& value) { idx_.write(std::as_bytes(std::span(&value, 1))); };
  write(kIdxVersion);
  write(static_cast<uint8_t>(type_));
  write(static_cast<uint64_t>(lengths_.size()));
  write(static_cast<uint64_t>(document_index_.size()));
  idx_.write(std::as_bytes(std::span(lengths_)));
  int64_t offset = 0;
  for (int32_t length : lengths_) {
    write(offset);
    offset += length * static_cast<int64_t>(size_of(type_));
  }
  idx_.write(std::as_bytes(std::span(document_index_)));
  if (multimodal_) idx_.write(std::as_bytes(std::span(modes_)));
  bin_.commit();
  idx_.commit();
}

void merge_datasets(const std::vector<std::string>& prefixes, const std::string& output, bool multimodal) {
  require(!prefixes.empty(), "merge into {}: no datasets were given", output);
  IndexedWriter writer(output, IndexedDataset(prefixes[0], {.multimodal = multimodal}).type(), multimodal);
  for (const std::string& prefix : prefixes) writer.add_dataset(prefix);
  writer.commit();
}

}  // namespace megatron
