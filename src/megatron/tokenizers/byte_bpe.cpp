#include "megatron/tokenizers/byte_bpe.h"

#include <unordered_map>

#include "megatron/base/error.h"
#include "megatron/tokenizers/models/vocabulary.h"
#include "megatron/tokenizers/word_memory.h"
#include "megatron/tokenizers/word_scanner_inl.h"

namespace megatron::tokenizers {
namespace {

constexpr size_t kMostRemembered = 256;  // bytes of a word; longer ones hardly come again

// Rules as a constant, so that the scanner's branches on them fold away.
template <WordRules::Letters letters, WordRules::Contractions contractions, int digits, bool line_ends,
          bool slashes, bool whole_end>
struct ConstantRules {
  static constexpr WordRules value{letters, contractions, digits, line_ends, slashes, whole_end};
  constexpr operator const WordRules&() const { return value; }
};

using L = WordRules::Letters;
using C = WordRules::Contractions;
using Gpt2Rules = ConstantRules<L::spaced, C::lower, 0, false, false, false>;
using Llama3Rules = ConstantRules<L::prefixed, C::before, 3, true, false, false>;
using Qwen2Rules = ConstantRules<L::prefixed, C::before, 1, true, false, false>;
using O200kRules = ConstantRules<L::cased, C::behind, 3, true, true, false>;

}  // namespace

struct ByteBpe::Pieces {
  std::unordered_map<std::string, TokenId, TextHash, std::equal_to<>> ids;
};

ByteBpe::~ByteBpe() = default;

ByteBpe::ByteBpe(WordRules rules, bool prefix_space, std::vector<std::pair<std::string, TokenId>> pieces,
                 MergeTable merges, bool whole_words)
    : rules_(rules), prefix_space_(prefix_space), whole_words_(whole_words), merges_(std::move(merges)) {
  auto table = std::make_unique<Pieces>();
  byte_ids_.fill(-1);
  for (auto& [bytes, id] : pieces) {
    if (bytes.size() == 1) byte_ids_[static_cast<uint8_t>(bytes[0])] = id;
    cuts_.add(bytes);
    if (whole_words) table->ids.emplace(std::move(bytes), id);
  }
  for (size_t byte = 0; byte < 256; ++byte)
    require(byte_ids_[byte] >= 0, "byte-level BPE: byte {:#04x} is no piece of the vocabulary", byte);
  pieces_ = std::move(table);
}

std::unique_ptr<EncodeMemory> ByteBpe::make_memory(size_t bytes) const {
  return std::make_unique<WordMemory>(bytes);
}

void ByteBpe::encode_new(std::string_view word, bool part, WordMemory& memory,
                         std::vector<TokenId>& ids) const {
  if (whole_words_ && !part)
    if (const auto found = pieces_->ids.find(word); found != pieces_->ids.end()) {
      ids.push_back(found->second);
      return;
    }
  memory.symbols.clear();
  for (char c : word) memory.symbols.push_back({byte_ids_[static_cast<uint8_t>(c)], 1});
  merge_symbols(merges_, memory.symbols, memory.scratch);
  for (const Symbol& symbol : memory.symbols) ids.push_back(symbol.id);
}

// A part of a word between two cuts.
void ByteBpe::encode_part(const char* text, size_t length, size_t readable, WordMemory& memory,
                          std::vector<TokenId>& ids) const {
  const std::string_view part(text, length);
  memory.remember(part, readable, true, ids,
                  [&](std::vector<TokenId>& made) { encode_new(part, true, memory, made); });
}

// A word that a key cannot hold: whole if it was met before or cannot be cut, else part by part. Text of
// characters of three bytes and more is mostly cut, so that it is not looked up whole before.
void ByteBpe::encode_long(std::string_view word, WordMemory& memory, std::vector<TokenId>& ids) const {
  const bool remembered = word.size() <= kMostRemembered;
  const bool cut_first =
      static_cast<unsigned char>(word[1]) >= 0xE0 || static_cast<unsigned char>(word[3]) >= 0xE0;
  uint64_t hash = 0;
  const auto known = [&] {
    hash = WordMemory::hash_of(word, false);
    return memory.find_long(word, hash, ids);
  };
  if (remembered && !cut_first && known()) return;
  size_t begin = 0, at = 0;
  uint32_t left = 0;
  while (at < word.size()) {
    const auto lead = static_cast<unsigned char>(word[at]);
    const size_t length = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    uint32_t right = lead;
    for (size_t i = 1; i < length; ++i) right |= uint32_t{static_cast<uint8_t>(word[at + i])} << 8 * i;
    if (at > begin && !cuts_.joined(left, right, static_cast<uint8_t>(word[at - 1]), lead)) {
      encode_part(word.data() + begin, at - begin, word.size() - begin, memory, ids);
      begin = at;
    }
    left = right;
    at += length;
  }
  if (begin > 0) return encode_part(word.data() + begin, at - begin, word.size() - begin, memory, ids);
  if (remembered && cut_first && known()) return;
  const size_t before = ids.size();
  encode_new(word, false, memory, ids);
  if (remembered) memory.keep_long(word, hash, std::span(ids).subspan(before));
}

// Words are cut a few at a time, so that memory is on its way for the later ones while the first are looked
// up.
template <class Rules>
void ByteBpe::encode_words(Rules rules, std::string_view text, WordMemory& memory,
                           std::vector<TokenId>& ids) const {
  struct Pending {
    WordKey key;
    uint64_t hash;
    size_t begin, length;
  };
  constexpr size_t kAhead = 16;
  Pending pending[kAhead];
  const char* data = text.data();
  const size_t size = text.size();
  const ScannedText scanned{data, size};
  for (size_t at = 0; at < size;) {
    size_t count = 0;
    for (; count < kAhead && at < size; ++count) {
      Pending& word = pending[count];
      const size_t end = scan_word(rules, scanned, at);
      word.begin = at;
      word.length = end - at;
      if (word.length <= WordKey::kMost) {
        word.key = WordKey::of(data + at, word.length, size - at, false);
        word.hash = word.key.hash();
        memory.prefetch(word.hash);
      }
      at = end;
    }
    for (size_t i = 0; i < count; ++i) {
      const Pending& word = pending[i];
      if (word.length > WordKey::kMost) {
        encode_long({data + word.begin, word.length}, memory, ids);
      } else if (!memory.find_short(word.key, word.hash, ids)) {
        const size_t before = ids.size();
        encode_new({data + word.begin, word.length}, false, memory, ids);
        memory.keep_short(word.key, std::span(ids).subspan(before));
      }
    }
  }
}

void ByteBpe::encode(std::string_view text, EncodeMemory* given, std::vector<TokenId>& ids) const {
  if (text.empty()) return;
  std::string spaced;
  if (prefix_space_ && text[0] != ' ') text = (spaced = " ").append(text);
  std::unique_ptr<EncodeMemory> own;
  if (!given) own = make_memory(1 << 20);
  auto& memory = static_cast<WordMemory&>(given ? *given : *own);
  if (rules_ == Llama3Rules::value) return encode_words(Llama3Rules(), text, memory, ids);
  if (rules_ == Qwen2Rules::value) return encode_words(Qwen2Rules(), text, memory, ids);
  if (rules_ == Gpt2Rules::value) return encode_words(Gpt2Rules(), text, memory, ids);
  if (rules_ == O200kRules::value) return encode_words(O200kRules(), text, memory, ids);
  encode_words(rules_, text, memory, ids);
}

}  // namespace megatron::tokenizers
