#include "megatron/tokenizers/sentencepiece/sp_wrapper.h"

#include <algorithm>

#include "megatron/base/error.h"
#include "megatron/tokenizers/chat/unicode.h"
#include "megatron/tokenizers/unicode/utf8.h"

namespace megatron::tokenizers {
namespace {

constexpr std::string_view kMark = "\u262F";  // stands for a space that the model would drop

size_t count_characters(std::string_view utf8) {
  return static_cast<size_t>(std::ranges::count_if(utf8, [](char c) { return (c & 0xC0) != 0x80; }));
}

// A text whose characters know their places in another one.
struct PlacedText {
  std::string text;
  std::vector<uint32_t> places;  // of each character

  void add(std::string_view characters, uint32_t place) {
    text += characters;
    places.insert(places.end(), count_characters(characters), place);
  }
};

PlacedText placed(std::string_view text) {
  PlacedText result;
  uint32_t place = 0;
  for (size_t i = 0; i < text.size();) {
    const size_t length = decode_utf8(text.substr(i)).length;
    result.add(text.substr(i, length), place++);
    i += length;
  }
  return result;
}

// Python's re.sub(r'(?<= )(?= )|^ | $', ' ☯ ', text).rstrip(): a mark between two spaces, and in place of one
// at either end. Python finds the empty match between two spaces before a space that is the last.
PlacedText marked_spaces(std::string_view text) {
  PlacedText result;
  const std::string mark = " " + std::string(kMark) + " ";
  const auto space = [&](size_t i) { return i < text.size() && text[i] == ' '; };
  uint32_t place = 0;
  for (size_t i = 0; i < text.size();) {
    if (i > 0 && space(i - 1) && space(i)) result.add(mark, place);
    const bool last = i + 1 == text.size() || (i + 2 == text.size() && text[i + 1] == '\n');
    const size_t length = decode_utf8(text.substr(i)).length;
    if (space(i) && (i == 0 || last))
      result.add(mark, place);
    else
      result.add(text.substr(i, length), place);
    i += length;
    ++place;
  }
  const std::string_view kept = chat::strip(result.text, nullptr, false, true);
  const std::string_view gone = std::string_view(result.text).substr(kept.size());
  result.places.resize(result.places.size() - count_characters(gone));
  result.text.resize(kept.size());
  return result;
}

}  // namespace

SpWrapper::SpWrapper(std::shared_ptr<const TokenizerBackend> model, const SpWrapperOptions& options)
    : model_(std::move(model)),
      model_size_(model_->vocab_size()),
      vocab_size_(model_size_),
      legacy_(options.legacy),
      specials_(model_->special_ids()) {
  const TokenId unknown = specials_.unk;
  for (const std::string& token : options.special_tokens) {
    require(!token.empty(), "--tokenizer-special-tokens: a token is empty");
    const TokenId own = model_->id_of(token).value_or(unknown);
    if (std::ranges::any_of(tokens_, [&](const auto& known) { return known.first == token; })) continue;
    tokens_.emplace_back(token, own == unknown ? static_cast<TokenId>(vocab_size_++) : own);
  }
  separator_ = model_->id_of("\u2581").value_or(unknown);
  const auto by_name = [&](TokenId& id, std::string_view name) {
    if (const auto found = id_of(name); id < 0 && found && find_special(*found)) id = *found;
  };
  by_name(specials_.bos, "<s>");
  by_name(specials_.eos, "</s>");
  by_name(specials_.pad, "<pad>");
  by_name(specials_.cls, "<cls>");
  by_name(specials_.sep, "<sep>");
  by_name(specials_.mask, "<mask>");
  if (specials_.eod < 0) specials_.eod = specials_.eos;
  if (!options.ignore_extra_whitespaces)
    marks_spaces_ =
        model_->encode_with_offsets("x  y", false).pieces == model_->encode_with_offsets("x y", false).pieces;
}

const std::pair<std::string, TokenId>* SpWrapper::find_special(TokenId id) const {
  const auto found = std::ranges::find(tokens_, id, &std::pair<std::string, TokenId>::second);
  return found == tokens_.end() ? nullptr : &*found;
}

std::optional<TokenId> SpWrapper::id_of(std::string_view piece) const {
  for (const auto& [token, id] : tokens_)
    if (token == piece) return id;
  return model_->id_of(piece);
}

std::string SpWrapper::piece_of(TokenId id) const {
  if (const auto* special = find_special(id)) return special->first;
  return id < model_size_ ? model_->piece_of(id) : "";
}

std::vector<SpWrapper::Part> SpWrapper::parts_of(std::string_view given) const {
  std::string repaired;
  if (!is_utf8(given)) given = repaired = to_utf8_lossy(given);
  const PlacedText all = marks_spaces_ ? marked_spaces(given) : placed(given);
  const std::string_view text = all.text;
  const auto end_place = static_cast<uint32_t>(count_characters(given));
  std::vector<Part> parts;
  size_t characters = 0;  // before the part
  const auto add = [&](std::string_view part, const std::pair<std::string, TokenId>* special) -> Part& {
    Part& added = parts.emplace_back(special, std::string(part));
    const size_t count = count_characters(part);
    for (size_t i = 0; i <= count; ++i)
      added.places.push_back(characters + i < all.places.size() ? all.places[characters + i] : end_place);
    characters += count;
    return added;
  };
  size_t at = 0;
  while (legacy_) {
    const std::pair<std::string, TokenId>* next = nullptr;
    size_t place = std::string_view::npos;
    for (const auto& token : tokens_)
      if (const size_t found = text.find(token.first, at); found < place) {
        place = found;
        next = &token;
      }
    if (!next) break;
    add(text.substr(at, place - at), nullptr);
    add(next->first, next);
    at = place + next->first.size();
  }
  if (!marks_spaces_) {
    add(text.substr(at), nullptr).last = true;
    return parts;
  }
  while (at <= text.size()) {
    const size_t mark = std::min(text.find(kMark, at), text.size());
    if (mark > at) {
      Part& part = add(text.substr(at, mark - at), nullptr);
      part.text += kMark;
      part.places.push_back(part.places.back());
      part.ends_with_mark = part.last = true;
    }
    ++characters;  // the mark's own
    at = mark + kMark.size();
  }
  return parts;
}

void SpWrapper::encode(std::string_view text, bool add_special_tokens, EncodeMemory* memory,
                       std::vector<TokenId>& ids) const {
  if (add_special_tokens && specials_.bos >= 0) ids.push_back(specials_.bos);
  const size_t first = ids.size();
  for (const Part& part : parts_of(text)) {
    if (part.special) {
      ids.push_back(part.special->second);
      continue;
    }
    const size_t begin = ids.size();
    model_->encode(part.text, false, memory, ids);
    if (part.ends_with_mark && ids.size() > begin) ids.pop_back();
    if (!part.last && begin > first && find_special(ids[begin - 1]) && ids.size() > begin &&
        ids[begin] == separator_)
      ids.erase(ids.begin() + static_cast<ptrdiff_t>(begin));
  }
  if (add_special_tokens && specials_.eos >= 0) ids.push_back(specials_.eos);
}

Encoding SpWrapper::encode_with_offsets(std::string_view text, bool add_special_tokens) const {
  Encoding encoding;
  const auto put = [&](TokenId id, std::string piece, CharRange range) {
    encoding.ids.push_back(id);
    encoding.pieces.push_back(std::move(piece));
    encoding.offsets.push_back(range);
  };
  if (add_special_tokens && specials_.bos >= 0) put(specials_.bos, piece_of(specials_.bos), {});
  const size_t first = encoding.ids.size();
  for (const Part& part : parts_of(text)) {
    if (part.special) {
      put(part.special->second, part.special->first, {part.places.front(), part.places.back()});
      continue;
    }
    Encoding own = model_->encode_with_offsets(part.text, false);
    const size_t count = own.ids.size() - (part.ends_with_mark && !own.ids.empty());
    const bool trimmed = !part.last && encoding.ids.size() > first && find_special(encoding.ids.back()) &&
                         count > 0 && own.ids[0] == separator_;
    for (size_t i = trimmed; i < count; ++i)
      put(own.ids[i], std::move(own.pieces[i]),
          {part.places[own.offsets[i].begin], part.places[own.offsets[i].end]});
  }
  if (add_special_tokens && specials_.eos >= 0) put(specials_.eos, piece_of(specials_.eos), {});
  return encoding;
}

std::string SpWrapper::decode(std::span<const TokenId> ids, bool skip_special_tokens) const {
  if (!legacy_) return model_->decode(ids, skip_special_tokens);
  std::string text;
  size_t begin = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto* special = find_special(ids[i]);
    if (!special) continue;
    text += model_->decode(ids.subspan(begin, i - begin), skip_special_tokens) + " ";
    if (!skip_special_tokens) text += special->first + " ";
    begin = i + 1;
  }
  text += model_->decode(ids.subspan(begin), skip_special_tokens);
  return std::string(chat::strip(text, nullptr, true, true));
}

}  // namespace megatron::tokenizers
