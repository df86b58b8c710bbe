#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace megatron {

class Tokenizer;

// The bytes that each token adds to a text, "" of those that may not appear under a constraint: special ones,
// and those that mean no bytes of their own.
std::vector<std::string> token_bytes(const Tokenizer& tokenizer);

// Tokens by their bytes, as a tree in depth-first order: the subtree of node i is [i, node(i).end).
class TokenTrie {
 public:
  struct Node {
    uint32_t end;          // one past the last node of its subtree
    uint32_t first_token;  // of tokens(); as many as the next node's first
    uint16_t depth;        // 1: a first byte
    uint8_t byte;
  };
  struct Entry {
    std::string_view bytes;
    int64_t token;
  };

  // Nodes [begin, end) below one whose depth is `depth`.
  struct Range {
    size_t begin, end, depth;
  };

  TokenTrie() = default;
  // Entries need not be sorted; those without bytes are left out.
  explicit TokenTrie(std::vector<Entry> entries);

  std::span<const Node> nodes() const { return nodes_; }
  Range all() const { return {0, nodes_.size(), 0}; }
  Range below(size_t node) const { return {node + 1, nodes_[node].end, nodes_[node].depth}; }
  // The tokens that end at a node.
  std::span<const int64_t> tokens(size_t node) const {
    const size_t first = nodes_[node].first_token;
    const size_t last = node + 1 < nodes_.size() ? nodes_[node + 1].first_token : tokens_.size();
    return std::span(tokens_).subspan(first, last - first);
  }
  // Calls visit(bytes behind `node`, token) for each token of its subtree.
  template <class Visit>
  void visit_below(size_t node, Visit visit) const {
    std::string suffix;
    const size_t base = nodes_[node].depth;
    for (size_t i = node; i < nodes_[node].end; ++i) {
      suffix.resize(nodes_[i].depth - base);
      if (i > node) suffix.back() = static_cast<char>(nodes_[i].byte);
      for (int64_t token : tokens(i)) visit(suffix, token);
    }
  }

 private:
  std::vector<Node> nodes_;
  std::vector<int64_t> tokens_;
};

class CharacterTables;

// A model's vocabulary as constraints see it.
struct ConstraintVocabulary {
  std::vector<std::string> bytes;  // by token
  TokenTrie trie;
  std::vector<int64_t> end_tokens;
  int64_t size = 0;  // of masks; rows that the tokenizer does not know are never allowed
  std::shared_ptr<CharacterTables> characters;  // made when constraints first ask for them

  // `size` is the model's number of logits, `end_tokens` those that end a text.
  ConstraintVocabulary(std::vector<std::string> bytes, std::vector<int64_t> end_tokens, int64_t size);
};

}  // namespace megatron
