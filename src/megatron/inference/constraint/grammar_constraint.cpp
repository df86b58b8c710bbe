#include "megatron/inference/constraint/grammar_constraint.h"

#include <algorithm>
#include <bit>
#include <mutex>
#include <unordered_map>

#include "megatron/inference/constraint/grammar_path.h"
#include "megatron/inference/constraint/local_states.h"
#include "megatron/inference/constraint/token_mask.h"
#include "megatron/inference/constraint/token_walk.h"

namespace megatron {
namespace {

// A set of tokens: a list where they are few, which most sets are.
class TokenSet {
 public:
  explicit TokenSet(const TokenMask& mask) {
    size_t count = 0;
    for (uint32_t word : mask) count += static_cast<size_t>(std::popcount(word));
    if (count > mask.size() / 2) {
      many_ = mask;
      return;
    }
    few_.reserve(count);
    for (size_t i = 0; i < mask.size(); ++i)
      for (uint32_t word = mask[i]; word != 0; word &= word - 1)
        few_.push_back(static_cast<uint32_t>(i * 32) + static_cast<uint32_t>(std::countr_zero(word)));
  }

  void add_to(TokenMask& mask) const {
    for (size_t i = 0; i < many_.size(); ++i) mask[i] |= many_[i];
    for (uint32_t token : few_) set_token(mask, token);
  }
  size_t bytes() const { return (few_.size() + many_.size()) * sizeof(uint32_t); }

 private:
  std::vector<uint32_t> few_;
  TokenMask many_;
};

// What tokens do from a local state on, whatever calls wait below it: those that end within the rule, or with
// the byte that leaves it, are known; the others are known up to that byte.
struct StateTokens {
  struct Leaving {
    const TokenTrie* trie;
    size_t node;
  };
  TokenSet ending;
  std::vector<Leaving> leaving;
};

// Readings of one text that wait for the same calls to return.
struct Reading {
  std::vector<int> nodes;
  GrammarStack stack;
};

std::vector<Reading> readings_of(const GrammarPaths& paths) {
  std::vector<Reading> readings;
  for (const GrammarPath& path : paths) {
    if (path.node == GrammarPath::kLeft) continue;
    auto found = std::ranges::find_if(
        readings, [&](const Reading& one) { return same_stack(one.stack.get(), path.stack.get()); });
    if (found == readings.end()) found = readings.insert(found, {{}, path.stack});
    found->nodes.push_back(path.node);
  }
  return readings;
}

class GrammarConstraint : public Constraint, public std::enable_shared_from_this<GrammarConstraint> {
 public:
  GrammarConstraint(Grammar grammar, std::shared_ptr<const ConstraintVocabulary> vocabulary)
      : grammar_(std::move(grammar)), vocabulary_(std::move(vocabulary)) {
    for (int own : grammar_.repeated_characters())
      if (classes_.size() < kMaxClasses)
        classes_.push_back(vocabulary_->characters->get(*vocabulary_, grammar_.characters(own)));
    forget_states();
    mask(first_paths(grammar_));  // which every text asks for
  }

  std::unique_ptr<ConstraintState> start() const override;

  const Grammar& grammar() const { return grammar_; }
  const ConstraintVocabulary& vocabulary() const { return *vocabulary_; }

  // The mask of a set of paths, made at most once while it is remembered.
  std::shared_ptr<const TokenMask> mask(const GrammarPaths& paths) const {
    const uint64_t hash = hash_of(paths);
    const std::lock_guard lock(mutex_);
    if (auto found = masks_.find(hash); found != masks_.end() && found->second.paths == paths)
      return found->second.mask;
    auto made = std::make_shared<const TokenMask>(make_mask(paths));
    if (masks_.size() >= kMaxMasks) masks_.clear();
    masks_[hash] = {paths, made};
    return made;
  }

 private:
  static constexpr size_t kMaxMasks = 512;
  static constexpr size_t kMaxClasses = 16;
  static constexpr size_t kMaxStateBytes = size_t{16} << 20;
  static constexpr size_t kMaxTokenBytes = size_t{16} << 20;
  // Calls that one token may make: closer to the limit than this, the depth decides what is allowed.
  static constexpr int kNearLimit = 64;

  // What reads on where readings left that wait for a stack of calls: found once for a mask.
  using Outside = std::unordered_map<const GrammarFrame*, std::vector<Reading>>;

  void forget_states() const {
    tokens_.clear();
    token_bytes_ = 0;
    states_ = std::make_unique<LocalStates>(grammar_, classes_);
  }

  TokenMask make_mask(const GrammarPaths& paths) const {
    if (states_->bytes() > kMaxStateBytes || token_bytes_ > kMaxTokenBytes) forget_states();
    TokenMask mask(static_cast<size_t>(vocabulary_->size + 31) / 32);
    if (std::ranges::any_of(paths, [](const GrammarPath& path) { return path.node == GrammarPath::kLeft; }))
      set_tokens(mask, vocabulary_->end_tokens);
    Outside outside;
    for (const Reading& reading : readings_of(paths)) {
      if (is_near_limit(reading)) {
        walk(vocabulary_->trie, vocabulary_->trie.all(), reading, mask);
        continue;
      }
      const StateTokens& own = state_tokens(states_->enter(reading.nodes, reading.stack != nullptr));
      own.ending.add_to(mask);
      for (const auto& [trie, node] : own.leaving)
        for (const Reading& next : behind(reading.stack, outside)) read_on(*trie, node, next, outside, mask);
    }
    return mask;
  }

  static bool is_near_limit(const Reading& reading) {
    return reading.stack && reading.stack->depth > Grammar::kMaxDepth - kNearLimit;
  }

  const std::vector<Reading>& behind(const GrammarStack& stack, Outside& outside) const {
    auto [found, is_new] = outside.try_emplace(stack.get());
    if (is_new) found->second = readings_of(paths_at(grammar_, stack->target, stack->below));
    return found->second;
  }

  // Adds the tokens behind a node of a tree that a reading goes on with.
  void read_on(const TokenTrie& trie, size_t node, const Reading& reading, Outside& outside,
               TokenMask& mask) const {
    if (is_near_limit(reading)) {
      walk(trie, trie.below(node), reading, mask);
      return;
    }
    const TokenWalk::Leave leave = [&](const TokenTrie& tree, size_t at) {
      for (const Reading& next : behind(reading.stack, outside)) read_on(tree, at, next, outside, mask);
    };
    TokenWalk(*states_, classes_, *vocabulary_, mask, leave)
        .read(trie, trie.below(node), states_->enter(reading.nodes, reading.stack != nullptr));
  }

  const StateTokens& state_tokens(int state) const {
    std::unique_ptr<const StateTokens>& own = tokens_[state];
    if (own) return *own;
    TokenMask ending(static_cast<size_t>(vocabulary_->size + 31) / 32);
    std::vector<StateTokens::Leaving> leaving;
    const TokenWalk::Leave leave = [&](const TokenTrie& trie, size_t node) {
      leaving.push_back({&trie, node});
    };
    TokenWalk(*states_, classes_, *vocabulary_, ending, leave)
        .read(vocabulary_->trie, vocabulary_->trie.all(), state);
    own = std::make_unique<const StateTokens>(StateTokens{TokenSet(ending), std::move(leaving)});
    token_bytes_ += own->ending.bytes() + own->leaving.size() * sizeof(StateTokens::Leaving);
    return *own;
  }

  // Adds the tokens of a tree's nodes that `reading` reads, with all calls that wait.
  void walk(const TokenTrie& trie, TokenTrie::Range range, const Reading& reading, TokenMask& mask) const {
    std::vector<GrammarPaths> at(1);
    for (int node : reading.nodes) at[0].push_back({node, reading.stack});
    for (size_t i = range.begin; i < range.end;) {
      const TokenTrie::Node& step = trie.nodes()[i];
      at.resize(step.depth - range.depth);
      GrammarPaths next = read_byte(grammar_, at.back(), step.byte);
      if (next.empty()) {
        i = step.end;
        continue;
      }
      set_tokens(mask, trie.tokens(i));
      at.push_back(std::move(next));
      ++i;
    }
  }

  struct Kept {
    GrammarPaths paths;
    std::shared_ptr<const TokenMask> mask;
  };

  Grammar grammar_;
  std::shared_ptr<const ConstraintVocabulary> vocabulary_;
  LocalStates::Classes classes_;
  mutable std::mutex mutex_;  // of what follows
  mutable std::unordered_map<uint64_t, Kept> masks_;
  mutable std::unique_ptr<LocalStates> states_;
  mutable std::unordered_map<int, std::unique_ptr<const StateTokens>> tokens_;  // by state
  mutable size_t token_bytes_ = 0;
};

class GrammarState : public ConstraintState {
 public:
  explicit GrammarState(std::shared_ptr<const GrammarConstraint> constraint)
      : constraint_(std::move(constraint)), paths_(first_paths(constraint_->grammar())) {}

  void allowed(std::span<uint32_t> bits) const override {
    const std::shared_ptr<const TokenMask> mask = constraint_->mask(paths_);
    const size_t count = std::min(bits.size(), mask->size());
    std::copy_n(mask->begin(), count, bits.begin());
    std::fill(bits.begin() + static_cast<ptrdiff_t>(count), bits.end(), 0U);
  }

  void advance(int64_t token) override {
    const ConstraintVocabulary& vocabulary = constraint_->vocabulary();
    if (std::ranges::find(vocabulary.end_tokens, token) != vocabulary.end_tokens.end()) return;
    if (token < 0 || token >= std::ssize(vocabulary.bytes)) return;
    for (char c : vocabulary.bytes[static_cast<size_t>(token)])
      paths_ = read_byte(constraint_->grammar(), paths_, static_cast<uint8_t>(c));
  }

 private:
  std::shared_ptr<const GrammarConstraint> constraint_;
  GrammarPaths paths_;
};

std::unique_ptr<ConstraintState> GrammarConstraint::start() const {
  return std::make_unique<GrammarState>(shared_from_this());
}

}  // namespace

std::shared_ptr<const Constraint> make_grammar_constraint(
    Grammar grammar, std::shared_ptr<const ConstraintVocabulary> vocabulary) {
  return std::make_shared<GrammarConstraint>(std::move(grammar), std::move(vocabulary));
}

}  // namespace megatron
