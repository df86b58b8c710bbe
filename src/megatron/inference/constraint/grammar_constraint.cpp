#include "megatron/inference/constraint/grammar_constraint.h"

#include <algorithm>
#include <bit>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "megatron/inference/constraint/grammar_path.h"

namespace megatron {
namespace {

using Mask = std::vector<uint32_t>;

void set_tokens(Mask& mask, std::span<const int64_t> tokens) {
  for (int64_t token : tokens) mask[static_cast<size_t>(token) / 32] |= 1U << (token % 32);
}

// A set of tokens: a list where they are few, which most sets are.
class TokenSet {
 public:
  explicit TokenSet(const Mask& mask) {
    size_t count = 0;
    for (uint32_t word : mask) count += static_cast<size_t>(std::popcount(word));
    if (count > mask.size() / 2) {
      many_ = mask;
      return;
    }
    for (size_t i = 0; i < mask.size(); ++i)
      for (uint32_t word = mask[i]; word != 0; word &= word - 1)
        few_.push_back(static_cast<uint32_t>(i * 32) + static_cast<uint32_t>(std::countr_zero(word)));
  }

  void add_to(Mask& mask) const {
    for (size_t i = 0; i < many_.size(); ++i) mask[i] |= many_[i];
    for (uint32_t token : few_) mask[token / 32] |= 1U << (token % 32);
  }

 private:
  std::vector<uint32_t> few_;
  Mask many_;
};

// Tokens that go on behind the byte that leaves a rule.
struct LeavingTokens {
  std::vector<uint32_t> large;  // nodes of the vocabulary whose subtree goes on behind it
  TokenTrie rest;               // of small subtrees, joined: what follows the byte
};

// What tokens do from one node on, whatever calls wait below it: those that end within the rule, or with the
// byte that leaves it, are known; the others are known up to that byte.
struct NodeTokens {
  TokenSet ending;
  std::optional<LeavingTokens> leaving;  // none where nothing was to follow
};

// The automaton of one walk through the vocabulary: sets of paths become states when they are first met.
class LocalStates {
 public:
  static constexpr int kDead = -1;

  LocalStates(const Grammar& grammar, GrammarPaths first) : grammar_(grammar) { add(std::move(first)); }

  int next(int state, uint8_t byte) {
    int& target = states_[static_cast<size_t>(state)].next[byte];
    if (target != kUnknown) return target;
    GrammarPaths paths = read_byte(grammar_, states_[static_cast<size_t>(state)].paths, byte);
    const int found = paths.empty() ? kDead : add(std::move(paths));
    return states_[static_cast<size_t>(state)].next[byte] = found;
  }
  bool leaves(int state) const { return states_[static_cast<size_t>(state)].leaves; }
  bool stays(int state) const { return states_[static_cast<size_t>(state)].stays; }

 private:
  static constexpr int kUnknown = -2;
  struct State {
    GrammarPaths paths;
    bool leaves, stays;
    std::vector<int> next;
  };

  int add(GrammarPaths paths) {
    const uint64_t hash = hash_of(paths);
    for (auto [at, end] = found_.equal_range(hash); at != end; ++at)
      if (states_[static_cast<size_t>(at->second)].paths == paths) return at->second;
    const bool leaves =
        std::ranges::any_of(paths, [](const GrammarPath& path) { return path.node == GrammarPath::kLeft; });
    const bool stays = paths.size() > (leaves ? 1 : 0);
    states_.push_back({std::move(paths), leaves, stays, std::vector<int>(256, kUnknown)});
    found_.emplace(hash, static_cast<int>(states_.size()) - 1);
    return static_cast<int>(states_.size()) - 1;
  }

  const Grammar& grammar_;
  std::vector<State> states_;
  std::unordered_multimap<uint64_t, int> found_;
};

// `is_called`: the node's rule returns to a caller, who reads on. Behind the outermost rule a text ends, and
// gathering what would follow takes much longer than the walk itself.
NodeTokens tokens_of(const Grammar& grammar, const ConstraintVocabulary& vocabulary, int node,
                     bool is_called) {
  constexpr uint32_t kSmall = 64;  // nodes of a subtree that is copied
  const size_t words = static_cast<size_t>(vocabulary.size + 31) / 32;
  Mask ending(words);
  std::vector<uint32_t> large;
  std::vector<std::pair<std::string, int64_t>> texts;
  LocalStates states(grammar, {{node, push_frame(-1, nullptr)}});
  const TokenTrie& trie = vocabulary.trie;
  std::vector<int> at = {0};  // state by depth
  for (size_t i = 0; i < trie.nodes().size();) {
    const TokenTrie::Node& step = trie.nodes()[i];
    at.resize(step.depth);
    const int state = states.next(at.back(), step.byte);
    if (state == LocalStates::kDead) {
      i = step.end;
      continue;
    }
    set_tokens(ending, trie.tokens(i));
    if (is_called && states.leaves(state)) {
      if (step.end - i > kSmall) {
        large.push_back(static_cast<uint32_t>(i));
      } else if (step.end > i + 1) {
        trie.visit_below(i, [&](const std::string& suffix, int64_t token) {
          if (!suffix.empty()) texts.emplace_back(suffix, token);
        });
      }
    }
    if (states.stays(state)) {
      at.push_back(state);
      ++i;
    } else {
      i = step.end;
    }
  }
  if (!is_called) return {TokenSet(ending), {}};
  std::vector<TokenTrie::Entry> entries;
  for (const auto& [suffix, token] : texts) entries.push_back({suffix, token});
  return {TokenSet(ending), LeavingTokens{std::move(large), TokenTrie(std::move(entries))}};
}

class GrammarConstraint : public Constraint, public std::enable_shared_from_this<GrammarConstraint> {
 public:
  GrammarConstraint(Grammar grammar, std::shared_ptr<const ConstraintVocabulary> vocabulary)
      : grammar_(std::move(grammar)), vocabulary_(std::move(vocabulary)) {}

  std::unique_ptr<ConstraintState> start() const override;

  const Grammar& grammar() const { return grammar_; }
  const ConstraintVocabulary& vocabulary() const { return *vocabulary_; }

  // The mask of a set of paths, made at most once while it is remembered.
  std::shared_ptr<const Mask> mask(const GrammarPaths& paths) const {
    const uint64_t hash = hash_of(paths);
    const std::lock_guard lock(mutex_);
    if (auto found = masks_.find(hash); found != masks_.end() && found->second.paths == paths)
      return found->second.mask;
    auto made = std::make_shared<const Mask>(make_mask(paths));
    if (masks_.size() >= kMaxMasks) masks_.clear();
    masks_[hash] = {paths, made};
    return made;
  }

 private:
  static constexpr size_t kMaxMasks = 512;
  static constexpr size_t kMaxNodeTokens = 4096;
  // Calls that one token may make: closer to the limit than this, the depth decides what is allowed.
  static constexpr int kNearLimit = 64;

  Mask make_mask(const GrammarPaths& paths) const {
    Mask mask(static_cast<size_t>(vocabulary_->size + 31) / 32);
    for (const GrammarPath& path : paths) {
      if (path.node == GrammarPath::kLeft) {
        set_tokens(mask, vocabulary_->end_tokens);
        continue;
      }
      if (path.stack && path.stack->depth > Grammar::kMaxDepth - kNearLimit) {
        walk(vocabulary_->trie, 0, vocabulary_->trie.nodes().size(), 0, {path}, mask);
        continue;
      }
      const std::shared_ptr<const NodeTokens> own = node_tokens(path.node, path.stack != nullptr);
      own->ending.add_to(mask);
      if (!path.stack) continue;
      const GrammarPaths outside = paths_at(grammar_, path.stack->target, path.stack->below);
      const LeavingTokens& leaving = *own->leaving;
      walk(leaving.rest, 0, leaving.rest.nodes().size(), 0, outside, mask);
      for (uint32_t node : leaving.large) {
        const TokenTrie::Node& from = vocabulary_->trie.nodes()[node];
        walk(vocabulary_->trie, node + 1, from.end, from.depth, outside, mask);
      }
    }
    return mask;
  }

  // A rule may be the outermost one and be called as well.
  std::shared_ptr<const NodeTokens> node_tokens(int node, bool is_called) const {
    if (nodes_.size() >= kMaxNodeTokens) nodes_.clear();
    std::shared_ptr<const NodeTokens>& own = nodes_[node];
    if (!own || (is_called && !own->leaving))
      own = std::make_shared<const NodeTokens>(tokens_of(grammar_, *vocabulary_, node, is_called));
    return own;
  }

  // Adds the tokens of trie nodes [begin, end), whose first bytes have the depth base + 1, that `first`
  // reads.
  void walk(const TokenTrie& trie, size_t begin, size_t end, size_t base, const GrammarPaths& first,
            Mask& mask) const {
    std::vector<GrammarPaths> at = {first};
    for (size_t i = begin; i < end;) {
      const TokenTrie::Node& step = trie.nodes()[i];
      at.resize(step.depth - base);
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
    std::shared_ptr<const Mask> mask;
  };

  Grammar grammar_;
  std::shared_ptr<const ConstraintVocabulary> vocabulary_;
  mutable std::mutex mutex_;
  mutable std::unordered_map<uint64_t, Kept> masks_;
  mutable std::unordered_map<int, std::shared_ptr<const NodeTokens>> nodes_;
};

class GrammarState : public ConstraintState {
 public:
  explicit GrammarState(std::shared_ptr<const GrammarConstraint> constraint)
      : constraint_(std::move(constraint)), paths_(first_paths(constraint_->grammar())) {}

  void allowed(std::span<uint32_t> bits) const override {
    const std::shared_ptr<const Mask> mask = constraint_->mask(paths_);
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
