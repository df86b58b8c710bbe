#include "megatron/tokenizers/byte_bpe.h"

#include <unordered_map>

#include "megatron/base/error.h"
#include "megatron/tokenizers/models/vocabulary.h"
#include "megatron/tokenizers/word_scanner_inl.h"

namespace megatron::tokenizers {

struct ByteBpe::Pieces {
  std::unordered_map<std::string, TokenId, TextHash, std::equal_to<>> ids;
};

class WordMemory : public EncodeMemory {
 public:
  std::vector<Symbol> symbols;
  MergeScratch scratch;
};

ByteBpe::~ByteBpe() = default;

ByteBpe::ByteBpe(WordRules rules, bool prefix_space, std::vector<std::pair<std::string, TokenId>> pieces,
                 MergeTable merges, bool whole_words)
    : rules_(rules), prefix_space_(prefix_space), whole_words_(whole_words), merges_(std::move(merges)) {
  auto table = std::make_unique<Pieces>();
  byte_ids_.fill(-1);
  for (auto& [bytes, id] : pieces) {
    if (bytes.size() == 1) byte_ids_[static_cast<uint8_t>(bytes[0])] = id;
    table->ids.emplace(std::move(bytes), id);
  }
  for (size_t byte = 0; byte < 256; ++byte)
    require(byte_ids_[byte] >= 0, "byte-level BPE: byte {:#04x} is no piece of the vocabulary", byte);
  pieces_ = std::move(table);
}

std::unique_ptr<EncodeMemory> ByteBpe::make_memory(size_t) const { return std::make_unique<WordMemory>(); }

void ByteBpe::encode_word(std::string_view word, WordMemory& memory, std::vector<TokenId>& ids) const {
  if (whole_words_)
    if (const auto found = pieces_->ids.find(word); found != pieces_->ids.end()) {
      ids.push_back(found->second);
      return;
    }
  memory.symbols.clear();
  for (char c : word) memory.symbols.push_back({byte_ids_[static_cast<uint8_t>(c)], 1});
  merge_symbols(merges_, memory.symbols, memory.scratch);
  for (const Symbol& symbol : memory.symbols) ids.push_back(symbol.id);
}

void ByteBpe::encode(std::string_view text, EncodeMemory* given, std::vector<TokenId>& ids) const {
  if (text.empty()) return;
  std::string spaced;
  if (prefix_space_ && text[0] != ' ') text = (spaced = " ").append(text);
  std::unique_ptr<EncodeMemory> own;
  if (!given) own = make_memory(0);
  auto& memory = static_cast<WordMemory&>(given ? *given : *own);
  for (size_t at = 0; at < text.size();) {
    const size_t end = scan_word(rules_, text.data(), at, text.size());
    encode_word(text.substr(at, end - at), memory, ids);
    at = end;
  }
}

}  // namespace megatron::tokenizers
