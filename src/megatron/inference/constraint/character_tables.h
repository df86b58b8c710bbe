#pragma once

#include <bitset>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "megatron/inference/constraint/code_points.h"
#include "megatron/inference/constraint/token_mask.h"
#include "megatron/inference/constraint/token_trie.h"

// What a vocabulary's tokens have of one class of characters, so that a loop like [a-z ]* or a JSON string
// needs no walk over the tokens that it reads whole.
//
// Every token is a run of characters of the class, as long as possible, and a rest. Where the rest is empty
// (or the begin of one more character of the class) the token is in a row of bits by the run's length: a
// state behind which n characters of the class may follow, whichever they are, allows the row of n. Else the
// token is in the tree of rests behind runs of its length. Where the state behind a run does not depend on
// which characters it has, the tree is walked from that one state, and all tokens that have the rest are
// decided at once. Tokens without a run are left to a walk over the vocabulary that passes by all others.
//
// Where any run may follow, but the state depends on its characters (a word among the letters), the row still
// holds, and the tokens that are no runs are walked from their begins.

namespace megatron {

// The tokens below one node of the vocabulary's tree, read from there on.
class CharacterTable {
 public:
  CharacterTable(const TokenTrie& trie, TokenTrie::Range range, const CodePoints& points, size_t mask_words);

  // Characters of the longest run; the begin of one at a token's end counts.
  size_t longest() const { return count_.size() - 1; }
  // How many tokens are runs of at most so many characters; adds them.
  size_t count(size_t characters) const { return count_[characters]; }
  void add(size_t characters, TokenMask& mask) const;
  // Whether all tokens from a node on begin with a character of the class or are the begin of one.
  bool covers(size_t node) const { return covered_[node - first_]; }
  // Whether a run may end at a node.
  bool ends_character(size_t node) const { return whole_[node - first_]; }
  // Rests behind runs, by their length. There are none behind 0.
  const std::vector<TokenTrie>& rests() const { return rests_; }
  // The tokens that are no runs, where that is a small part of all.
  const std::optional<TokenTrie>& others() const { return others_; }

 private:
  void add_others(const TokenTrie& trie, TokenTrie::Range range,
                  const std::vector<std::vector<uint32_t>>& runs, size_t mask_words);

  size_t first_;                               // node
  std::vector<size_t> count_;                  // by characters
  std::vector<TokenMask> rows_;                // by characters - 1, up to where few tokens are left
  std::vector<std::vector<uint32_t>> longer_;  // tokens of exactly so many characters, behind the last row
  std::vector<bool> covered_, whole_;          // by node
  std::vector<TokenTrie> rests_;
  std::optional<TokenTrie> others_;
};

// One class over a vocabulary: a table for the root, and for each node with many tokens below it (in most
// vocabularies half of all tokens begin with a space).
struct CharacterClass {
  CodePoints points;
  std::bitset<256> first_bytes;
  std::vector<std::pair<size_t, CharacterTable>> tables;  // by TokenTrie::Range::begin

  const CharacterTable* table(size_t begin) const;
};

// The classes that constraints over one vocabulary asked for; the least recently used is forgotten first.
class CharacterTables {
 public:
  static bool is_large(const TokenTrie& trie, size_t nodes) { return nodes * 16 > trie.nodes().size(); }

  std::shared_ptr<const CharacterClass> get(const ConstraintVocabulary& vocabulary, const CodePoints& points);

 private:
  static constexpr size_t kMaxKept = 24;

  std::mutex mutex_;
  std::list<std::shared_ptr<const CharacterClass>> kept_;
};

}  // namespace megatron
