#include "megatron/tokenizers/byte_bpe.h"

#include <bit>
#include <span>
#include <type_traits>
#include <unordered_map>

#include "megatron/base/error.h"
#include "megatron/tokenizers/models/vocabulary.h"
#include "megatron/tokenizers/word_memory.h"
#include "megatron/tokenizers/word_windows.h"
#include "megatron/tokenizers/zeroed_array.h"

namespace megatron::tokenizers {
namespace {

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

// Pieces by their bytes: short ones by a key, which takes one look at memory.
class ByteBpe::Pieces {
 public:
  explicit Pieces(size_t count) : short_(std::bit_ceil(2 * count + 16)) {}

  void add(std::string_view piece, size_t readable, TokenId id) {
    if (piece.size() > WordKey::kMost) {
      long_.emplace(piece, id);
      return;
    }
    const WordKey key = WordKey::of(piece.data(), piece.size(), readable, false);
    Slot& slot = slot_of(key);
    if (slot.key.empty()) slot = {key, id};
  }
  // Brings the place of a short word near, to be looked at soon; the hash is its key's.
  void prefetch(uint64_t hash) const { __builtin_prefetch(&short_[hash & (short_.size() - 1)]); }
  // -1 where the word is no piece.
  TokenId find(std::string_view word) const {
    if (word.size() > WordKey::kMost) {
      const auto found = long_.find(word);
      return found == long_.end() ? -1 : found->second;
    }
    const Slot& slot = slot_of(WordKey::of(word.data(), word.size(), 0, false));
    return slot.key.empty() ? -1 : slot.id;
  }

 private:
  struct Slot {
    WordKey key;
    TokenId id;
  };
  // The piece's, or a free one.
  Slot& slot_of(const WordKey& key) const {
    size_t i = key.hash() & (short_.size() - 1);
    while (!short_[i].key.empty() && !(short_[i].key == key)) i = (i + 1) & (short_.size() - 1);
    return const_cast<Slot&>(short_[i]);
  }

  ZeroedArray<Slot> short_;
  std::unordered_map<std::string, TokenId, TextHash, std::equal_to<>> long_;
};

ByteBpe::~ByteBpe() = default;

ByteBpe::ByteBpe(WordRules rules, bool prefix_space, const BytePieces& pieces,
                 std::shared_ptr<const MergeTable> merges, bool whole_words)
    : rules_(rules), prefix_space_(prefix_space), whole_words_(whole_words), merges_(std::move(merges)) {
  auto table = std::make_unique<Pieces>(whole_words ? pieces.count() : 0);
  byte_ids_.fill(-1);
  pieces.each([&](std::string_view bytes, size_t readable, TokenId id) {
    if (bytes.size() == 1) byte_ids_[static_cast<uint8_t>(bytes[0])] = id;
    cuts_.add(bytes);
    if (whole_words) table->add(bytes, readable, id);
  });
  for (size_t byte = 0; byte < 256; ++byte)
    require(byte_ids_[byte] >= 0, "byte-level BPE: byte {:#04x} is no piece of the vocabulary", byte);
  pieces_ = std::move(table);
  short_merges_.emplace(byte_ids_, merges_);
}

std::unique_ptr<EncodeMemory> ByteBpe::make_memory(size_t bytes) const {
  return std::make_unique<WordMemory>(bytes);
}

void ByteBpe::encode_new(std::string_view word, bool part, WordMemory& memory,
                         std::vector<TokenId>& ids) const {
  if (whole_words_ && !part)
    if (const TokenId id = pieces_->find(word); id >= 0) {
      ids.push_back(id);
      return;
    }
  if (word.size() <= ShortMerges::kMost) {
    ShortMerges::Word merged;
    short_merges_->begin(word, merged);
    short_merges_->merge({&merged, 1});
    return merged.append_to(ids);
  }
  memory.symbols.clear();
  for (char c : word) memory.symbols.push_back({byte_ids_[static_cast<uint8_t>(c)], 1});
  merge_symbols(*merges_, memory.symbols, memory.scratch);
  for (const Symbol& symbol : memory.symbols) ids.push_back(symbol.id);
  memory.release_scratch();
}

// The words of one text. They are gathered a few at a time, so that memory is on its way for the later ones
// while the first are looked up.
class ByteBpe::Run {
 public:
  Run(const ByteBpe& bpe, WordMemory& memory, std::string_view text, std::vector<TokenId>& ids)
      : bpe_(bpe), memory_(memory), end_(text.data() + text.size()), ids_(ids) {}

  void add(const char* begin, size_t length) {
    if (length <= WordKey::kMost) [[likely]]
      add_unit<WordKey>({begin, length}, false);
    else
      add_long({begin, length});
  }

  // Appends the ids of what was gathered.
  void flush() {
    TokenId found[(kUnits + 1) * WordMemory::kRoom], *out = found;
    size_t ahead = 0;  // units before this one were encoded ahead of their turn
    for (size_t i = 0; i < count_; ++i) {
      const Unit& unit = units_[i];
      size_t known = find(unit, out);
      if (known == 0 && i >= ahead && unit.text.size() <= LongWordKey::kMost) {
        ahead = encode_ahead(i);
        known = find(unit, out);
      }
      out += known;
      if (known > 0) [[likely]]
        continue;
      ids_.insert(ids_.end(), found, out);
      out = found;
      encode_unit(unit.text, unit.part);
    }
    ids_.insert(ids_.end(), found, out);
    count_ = 0;
  }

 private:
  static constexpr size_t kUnits = 64;
  // A word, or a part of one between two cuts.
  struct Unit {
    std::string_view text;
    uint64_t hash;
    bool part;
    union {  // by the text's length
      WordKey key;
      LongWordKey long_key;
    };
  };

  size_t find(const Unit& unit, TokenId* ids) const {
    if (unit.text.size() <= WordKey::kMost) [[likely]]
      return memory_.find_few(unit.key, unit.hash, ids);
    return unit.text.size() <= LongWordKey::kMost ? memory_.find_few(unit.long_key, unit.hash, ids) : 0;
  }

  // Remembers some of the new words among the units from `first` on, which often come in company, and returns
  // the unit behind the last that it has looked at.
  size_t encode_ahead(size_t first) {
    const Unit* missing[ShortMerges::kAtOnce];
    size_t count = 0, i = first;
    for (; i < count_ && count < ShortMerges::kAtOnce; ++i) {
      const Unit& unit = units_[i];
      if (unit.text.size() > LongWordKey::kMost || memory_has(unit)) continue;
      if (bpe_.whole_words_ && !unit.part && unit.text.size() <= WordKey::kMost)
        bpe_.pieces_->prefetch(unit.hash);
      missing[count++] = &unit;
    }
    ShortMerges::Word words[ShortMerges::kAtOnce];
    const Unit* merged[ShortMerges::kAtOnce];
    size_t merging = 0;
    for (size_t k = 0; k < count; ++k) {
      const Unit& unit = *missing[k];
      if (bpe_.whole_words_ && !unit.part)
        if (const TokenId id = bpe_.pieces_->find(unit.text); id >= 0) {
          keep(unit, {&id, 1});
          continue;
        }
      bpe_.short_merges_->begin(unit.text, words[merging]);
      merged[merging++] = &unit;
    }
    bpe_.short_merges_->merge({words, merging});
    for (size_t k = 0; k < merging; ++k) {
      made_.clear();
      words[k].append_to(made_);
      keep(*merged[k], made_);
    }
    return i;
  }
  bool memory_has(const Unit& unit) const {
    return unit.text.size() <= WordKey::kMost ? memory_.has(unit.key, unit.hash)
                                              : memory_.has(unit.long_key, unit.hash);
  }
  // The same word may be new twice.
  void keep(const Unit& unit, std::span<const TokenId> ids) {
    if (memory_has(unit)) return;
    if (unit.text.size() <= WordKey::kMost)
      memory_.keep(unit.key, unit.hash, ids);
    else
      memory_.keep(unit.long_key, unit.hash, ids);
  }

  template <class Key>
  void add_unit(std::string_view text, bool part) {
    Unit& unit = units_[count_];
    unit.text = text;
    unit.part = part;
    const Key key = Key::of(text.data(), text.size(), static_cast<size_t>(end_ - text.data()), part);
    unit.hash = key.hash();
    memory_.prefetch(key, unit.hash);
    if constexpr (std::is_same_v<Key, WordKey>)
      unit.key = key;
    else
      unit.long_key = key;
    if (++count_ == kUnits) flush();
  }
  void add_any(std::string_view text, bool part) {
    if (text.size() <= WordKey::kMost) return add_unit<WordKey>(text, part);
    if (text.size() <= LongWordKey::kMost) return add_unit<LongWordKey>(text, part);
    Unit& unit = units_[count_];
    unit.text = text;
    unit.part = part;
    if (++count_ == kUnits) flush();
  }
  // Text of characters of three bytes and more is mostly cut, so that it is not looked up whole before.
  void add_long(std::string_view word) {
    const auto wide = [&](size_t i) { return static_cast<unsigned char>(word[i]) >= 0xE0; };
    if (!wide(1) && !wide(3)) return add_any(word, false);
    if (!cut(word, [&](std::string_view part) { add_any(part, true); })) add_any(word, false);
  }

  // Calls `tell(part)` for every part of a word between two cuts; false where it has no cut.
  template <class Tell>
  bool cut(std::string_view word, Tell tell) const {
    size_t begin = 0, at = 0;
    uint32_t left = 0;
    while (at < word.size()) {
      const auto lead = static_cast<unsigned char>(word[at]);
      const size_t length = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
      uint32_t right = lead;
      for (size_t i = 1; i < length; ++i) right |= uint32_t{static_cast<uint8_t>(word[at + i])} << 8 * i;
      if (at > begin && !bpe_.cuts_.joined(left, right, static_cast<uint8_t>(word[at - 1]), lead)) {
        tell(word.substr(begin, at - begin));
        begin = at;
      }
      left = right;
      at += length;
    }
    if (begin == 0) return false;
    tell(word.substr(begin));
    return true;
  }

  void encode_unit(std::string_view text, bool part) {
    const auto readable = static_cast<size_t>(end_ - text.data());
    memory_.remember(text, readable, part, ids_, [&](std::vector<TokenId>& made) {
      if (text.size() <= LongWordKey::kMost || part ||
          !cut(text, [&](std::string_view piece) { encode_unit(piece, true); }))
        bpe_.encode_new(text, part, memory_, made);
    });
  }

  const ByteBpe& bpe_;
  WordMemory& memory_;
  const char* end_;
  std::vector<TokenId>& ids_;
  size_t count_ = 0;
  Unit units_[kUnits];
  std::vector<TokenId> made_;
};

template <class Rules>
void ByteBpe::encode_words(Rules rules, std::string_view text, WordMemory& memory,
                           std::vector<TokenId>& ids) const {
  const ScannedText scanned{text.data(), text.size()};
  Run run(*this, memory, text, ids);
  size_t word = 0;  // the begin of the word whose end is not known yet
  if (WordWindows<Rules>::knows(rules)) {
    WordWindows<Rules> windows(rules, scanned);
    size_t begins[64];
    while (windows.more()) {
      const size_t count = windows.next(begins);
      for (size_t i = 0; i < count; ++i) {
        if (begins[i] > word) run.add(text.data() + word, begins[i] - word);
        word = begins[i];
      }
    }
  }
  while (word < text.size()) {
    const size_t end = scan_word(rules, scanned, word);
    run.add(text.data() + word, end - word);
    word = end;
  }
  run.flush();
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
