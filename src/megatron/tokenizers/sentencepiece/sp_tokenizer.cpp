#include "megatron/tokenizers/sentencepiece/sp_tokenizer.h"

#include <algorithm>

#include "megatron/base/error.h"
#include "megatron/tokenizers/unicode/utf8.h"

namespace megatron::tokenizers {
namespace {

std::string byte_piece(unsigned byte) { return fmt::format("<0x{:02X}>", byte); }

// The byte that a piece <0x..> stands for; -1 where it has another form.
int byte_of(std::string_view piece) {
  for (unsigned byte = 0; piece.size() == 6 && byte < 256; ++byte)
    if (piece == byte_piece(byte)) return static_cast<int>(byte);
  return -1;
}

}  // namespace

SpTokenizer::SpTokenizer(SentencePieceFile file, std::string_view origin)
    : file_(std::move(file)), normalizer_(file_, origin) {
  byte_ids_.fill(-1);
  require(file_.denormalizer_map.empty(), "{}: denormalization rules are not supported", origin);
  for (size_t i = 0; i < file_.pieces.size(); ++i) {
    const auto& piece = file_.pieces[i];
    const auto id = static_cast<TokenId>(i);
    require(!piece.text.empty(), "{}: piece {} is empty", origin, i);
    require(!all_.find(piece.text), "{}: piece '{}' is there twice", origin, piece.text);
    require(piece.kind >= Kind::normal && piece.kind <= Kind::byte,
            "{}: piece {} has a kind that is not known ({})", origin, i, static_cast<int>(piece.kind));
    require(is_utf8(piece.text), "{}: piece {} is not UTF-8", origin, i);
    if (piece.kind == Kind::byte) {
      const int byte = byte_of(piece.text);
      require(byte >= 0, "{}: piece {} is a byte, but '{}' names none", origin, i, piece.text);
      byte_ids_[byte] = id;
      bytes_[id] = static_cast<char>(byte);
    }
    all_.add(piece.text, id);
    if (piece.kind == Kind::normal || piece.kind == Kind::user_defined || piece.kind == Kind::unused)
      ordinary_.add(piece.text, id);
    if (piece.kind == Kind::unknown) {
      require(specials_.unk < 0, "{}: pieces {} and {} are both unknown tokens", origin, specials_.unk, i);
      specials_.unk = id;
    }
  }
  require(specials_.unk >= 0, "{}: the model has no unknown token", origin);
  const auto control = [&](const std::string& text) {
    const auto id = all_.find(text);
    return id && kind_of(*id) == Kind::control ? *id : -1;
  };
  specials_.bos = control(file_.bos_piece);
  specials_.eos = specials_.eod = control(file_.eos_piece);
  specials_.pad = control(file_.pad_piece);
  for (unsigned byte = 0; byte < 256; ++byte)
    require(!file_.byte_fallback || byte_ids_[byte] >= 0,
            "{}: the model falls back to bytes, but lacks the piece {}", origin, byte_piece(byte));
  model_ = make_sp_model(file_, normalizer_, ordinary_, specials_.unk, origin);
}

bool SpTokenizer::is_special(TokenId id) const {
  if (id < 0 || id >= vocab_size()) return false;
  return kind_of(id) == Kind::control || kind_of(id) == Kind::unknown;
}

template <class Emit>
void SpTokenizer::run(std::string_view normalized, EncodeMemory* memory, Emit emit) const {
  std::vector<SpToken> tokens;
  model_->encode(normalized, memory, tokens);
  for (size_t i = 0; i < tokens.size(); ++i) {
    SpToken token = tokens[i];
    if (token.id != specials_.unk) {
      emit(token.id, token.range);
      continue;
    }
    if (file_.byte_fallback) {
      // All but the last byte stand before the character.
      for (uint32_t at = token.range.begin; at < token.range.end; ++at)
        emit(byte_ids_[static_cast<unsigned char>(normalized[at])],
             at + 1 == token.range.end ? token.range : ByteRange{token.range.begin, token.range.begin});
      continue;
    }
    while (i + 1 < tokens.size() && tokens[i + 1].id == specials_.unk)
      token.range.end = tokens[++i].range.end;
    emit(token.id, token.range);
  }
}

void SpTokenizer::encode(std::string_view text, bool add_special_tokens, EncodeMemory* memory,
                         std::vector<TokenId>& ids) const {
  if (add_special_tokens && specials_.bos >= 0) ids.push_back(specials_.bos);
  run(normalizer_.apply(text, nullptr), memory, [&](TokenId id, ByteRange) { ids.push_back(id); });
  if (add_special_tokens && specials_.eos >= 0) ids.push_back(specials_.eos);
}

Encoding SpTokenizer::encode_with_offsets(std::string_view text, bool add_special_tokens) const {
  std::vector<uint32_t> places;
  const std::string normalized = normalizer_.apply(text, &places);
  std::vector<uint32_t> characters(text.size() + 1);  // before each byte
  for (size_t i = 0; i < text.size(); ++i)
    characters[i + 1] = characters[i] + ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80);
  // A byte inside a character counts as its beginning.
  const auto character = [&](uint32_t place) {
    while (place > 0 && place < text.size() && (static_cast<unsigned char>(text[place]) & 0xC0) == 0x80)
      --place;
    return characters[place];
  };
  Encoding encoding;
  const auto put = [&](TokenId id, std::string piece, CharRange range) {
    encoding.ids.push_back(id);
    encoding.pieces.push_back(std::move(piece));
    encoding.offsets.push_back(range);
  };
  if (add_special_tokens && specials_.bos >= 0) put(specials_.bos, piece_of(specials_.bos), {});
  run(normalized, nullptr, [&](TokenId id, ByteRange range) {
    const bool unknown = id == specials_.unk;
    put(id, unknown ? normalized.substr(range.begin, range.end - range.begin) : piece_of(id),
        {character(places[range.begin]), character(places[range.end])});
  });
  if (add_special_tokens && specials_.eos >= 0) put(specials_.eos, piece_of(specials_.eos), {});
  return encoding;
}

std::string SpTokenizer::decode(std::span<const TokenId> ids, bool skip_special_tokens) const {
  std::string text, bytes;
  const auto flush = [&] {
    for (size_t i = 0; i < bytes.size();) {  // each malformed byte by itself
      const Utf8Char c = decode_utf8(std::string_view(bytes).substr(i));
      if (c.valid) {
        text.append(bytes, i, c.length);
        i += c.length;
      } else {
        text += "\xEF\xBF\xBD";
        ++i;
      }
    }
    bytes.clear();
  };
  bool at_begin = true, space_seen = false;
  for (TokenId id : ids) {
    const Kind kind = kind_of(id);
    std::string_view piece = file_.pieces[static_cast<size_t>(id)].text;
    if (kind == Kind::byte) {
      bytes += bytes_.at(id);
      continue;
    }
    flush();
    if (space_seen || !text.empty()) at_begin = false;
    space_seen = false;
    if (kind == Kind::control) continue;
    if (kind == Kind::unknown) {
      if (!skip_special_tokens) text += file_.unknown_surface;
      continue;
    }
    if (at_begin && (file_.dummy_prefix || file_.remove_extra_whitespaces) &&
        piece.starts_with(kSpaceSymbol)) {
      piece.remove_prefix(kSpaceSymbol.size());
      space_seen = !file_.remove_extra_whitespaces;  // else all of them go
    }
    for (size_t at; (at = piece.find(kSpaceSymbol)) != std::string_view::npos;
         piece.remove_prefix(at + kSpaceSymbol.size())) {
      text += piece.substr(0, at);
      text += ' ';
    }
    text += piece;
  }
  flush();
  return text;
}

}  // namespace megatron::tokenizers
