#include "megatron/tokenizers/sentencepiece/model_file.h"

#include <bit>
#include <cstring>

#include "megatron/base/error.h"

namespace megatron::tokenizers {
namespace {

// One message of protobuf's wire format, field by field.
class Message {
 public:
  Message(std::string_view bytes, std::string_view origin) : bytes_(bytes), origin_(origin) {}

  // Moves to the next field; false at the end.
  bool next() {
    if (at_ == bytes_.size()) return false;
    const uint64_t key = varint();
    field_ = key >> 3;
    type_ = static_cast<int>(key & 7);
    switch (type_) {
      case 0:
        number_ = varint();
        break;
      case 1:
        number_ = fixed(8);
        break;
      case 2: {
        const uint64_t size = varint();
        if (size > bytes_.size() - at_) cut();
        text_ = bytes_.substr(at_, size);
        at_ += size;
        break;
      }
      case 5:
        number_ = fixed(4);
        break;
      default:
        fail("{}: field {} has wire type {}; the file is no SentencePiece model", origin_, field_, type_);
    }
    return true;
  }
  uint64_t field() const { return field_; }
  // Values of the field; an Error where it has another type.
  uint64_t number() const { return expect(0), number_; }
  bool flag() const { return number() != 0; }
  float real() const { return expect(5), std::bit_cast<float>(static_cast<uint32_t>(number_)); }
  std::string_view text() const { return expect(2), text_; }

 private:
  [[noreturn]] void cut() const {
    fail("{}: the file is cut short or no SentencePiece model (at byte {})", origin_, at_);
  }
  void expect(int type) const {
    if (type_ != type) fail("{}: field {} has wire type {}, expected {}", origin_, field_, type_, type);
  }
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (at_ == bytes_.size()) cut();
      const auto byte = static_cast<unsigned char>(bytes_[at_++]);
      value |= uint64_t{byte & 127u} << shift;
      if (byte < 128) return value;
    }
    cut();
  }
  uint64_t fixed(size_t size) {
    if (size > bytes_.size() - at_) cut();
    uint64_t value = 0;
    std::memcpy(&value, bytes_.data() + at_, size);
    at_ += size;
    return value;
  }

  std::string_view bytes_, origin_;
  size_t at_ = 0;
  uint64_t field_ = 0, number_ = 0;
  int type_ = 0;
  std::string_view text_;
};

void read_piece(Message message, SentencePieceFile& file) {
  SentencePieceFile::Piece piece;
  while (message.next()) {
    if (message.field() == 1) piece.text = message.text();
    if (message.field() == 2) piece.score = message.real();
    if (message.field() == 3) piece.kind = static_cast<SentencePieceFile::Kind>(message.number());
  }
  file.pieces.push_back(std::move(piece));
}

void read_trainer(Message message, SentencePieceFile& file) {
  while (message.next()) {
    switch (message.field()) {
      case 3:
        file.algorithm = static_cast<SentencePieceFile::Algorithm>(message.number());
        break;
      case 24:
        file.whitespace_as_suffix = message.flag();
        break;
      case 35:
        file.byte_fallback = message.flag();
        break;
      case 44:
        file.unknown_surface = message.text();
        break;
      case 45:
        file.unknown_piece = message.text();
        break;
      case 46:
        file.bos_piece = message.text();
        break;
      case 47:
        file.eos_piece = message.text();
        break;
      case 48:
        file.pad_piece = message.text();
        break;
      default:
        break;
    }
  }
}

void read_normalizer(Message message, SentencePieceFile& file) {
  while (message.next()) {
    switch (message.field()) {
      case 2:
        file.char_map = message.text();
        break;
      case 3:
        file.dummy_prefix = message.flag();
        break;
      case 4:
        file.remove_extra_whitespaces = message.flag();
        break;
      case 5:
        file.escape_whitespaces = message.flag();
        break;
      default:
        break;
    }
  }
}

}  // namespace

SentencePieceFile SentencePieceFile::parse(std::string_view bytes, std::string_view origin) {
  SentencePieceFile file;
  Message message(bytes, origin);
  while (message.next()) {
    if (message.field() == 1) read_piece({message.text(), origin}, file);
    if (message.field() == 2) read_trainer({message.text(), origin}, file);
    if (message.field() == 3) read_normalizer({message.text(), origin}, file);
    if (message.field() == 5) {
      Message denormalizer(message.text(), origin);
      while (denormalizer.next())
        if (denormalizer.field() == 2) file.denormalizer_map = denormalizer.text();
    }
  }
  require(!file.pieces.empty(), "{}: the file holds no pieces; is it a SentencePiece model?", origin);
  return file;
}

}  // namespace megatron::tokenizers
