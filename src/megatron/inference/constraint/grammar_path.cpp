#include "megatron/inference/constraint/grammar_path.h"

#include <algorithm>
#include <unordered_map>

namespace megatron {
namespace {

// Each reading of a text costs a walk over the vocabulary. More than this are dropped: what is left is still
// allowed, and time stays bounded.
constexpr size_t kMaxPaths = 512;

uint64_t mix(uint64_t a, uint64_t b) {
  a ^= b + 0x9E3779B97F4A7C15u + (a << 6) + (a >> 2);
  return a * 0xFF51AFD7ED558CCDu;
}

uint64_t hash_of(const GrammarPath& path) {
  return mix(static_cast<uint64_t>(path.node) + 2, path.stack ? path.stack->hash : 1);
}

// Whether there is no other way on than to read a byte.
bool reads_only(const Grammar& grammar, int node) {
  if (node == GrammarPath::kLeft || grammar.is_end(node)) return false;
  const Grammar::Node& at = grammar.node(node);
  return at.empty.empty() && at.rule < 0 && (!at.edges.empty() || at.characters >= 0);
}

// Follows what costs no byte, from the paths on `work`, and keeps those that read one.
GrammarPaths close(const Grammar& grammar, GrammarPaths work) {
  if (work.size() == 1 && reads_only(grammar, work[0].node)) return work;
  GrammarPaths kept, seen;
  std::vector<uint64_t> hashes;
  std::unordered_multimap<uint64_t, size_t>
      by_hash;  // of all but the first few, which are faster looked through
  const auto is_new = [&](const GrammarPath& path) {
    constexpr size_t kFew = 32;
    const uint64_t hash = hash_of(path);
    for (size_t i = 0; i < std::min(seen.size(), kFew); ++i)
      if (hashes[i] == hash && seen[i] == path) return false;
    for (auto [at, end] = by_hash.equal_range(hash); at != end; ++at)
      if (seen[at->second] == path) return false;
    if (seen.size() >= kFew) by_hash.emplace(hash, seen.size());
    hashes.push_back(hash);
    seen.push_back(path);
    return true;
  };
  while (!work.empty() && seen.size() < kMaxPaths) {
    GrammarPath path = std::move(work.back());
    work.pop_back();
    if (!is_new(path)) continue;
    if (path.node == GrammarPath::kLeft) {
      kept.push_back(std::move(path));
      continue;
    }
    if (grammar.is_end(path.node)) {
      if (!path.stack || path.stack->target < 0) {
        work.push_back({GrammarPath::kLeft, nullptr});
      } else {
        work.push_back({path.stack->target, path.stack->below});
      }
      continue;
    }
    const Grammar::Node& node = grammar.node(path.node);
    for (int target : node.empty) work.push_back({target, path.stack});
    if (node.rule >= 0) {
      const int begin = grammar.rule(node.rule).part.begin;
      const int depth = path.stack ? path.stack->depth : 0;
      // A call that could not return within the limit is not begun.
      if (depth + 1 + grammar.depth_needed(begin) <= Grammar::kMaxDepth)
        work.push_back({begin, push_frame(node.target, path.stack)});
    }
    if (!node.edges.empty() || node.characters >= 0) kept.push_back(std::move(path));
  }
  std::sort(kept.begin(), kept.end(), [](const GrammarPath& a, const GrammarPath& b) {
    if (a.node != b.node) return a.node < b.node;
    return (a.stack ? a.stack->hash : 0) < (b.stack ? b.stack->hash : 0);
  });
  return kept;
}

}  // namespace

GrammarStack push_frame(int target, GrammarStack below) {
  const int depth = below ? below->depth + 1 : 1;
  const uint64_t hash = mix(below ? below->hash : 7, static_cast<uint64_t>(target) + 3);
  return std::make_shared<const GrammarFrame>(GrammarFrame{target, std::move(below), depth, hash});
}

bool same_stack(const GrammarFrame* a, const GrammarFrame* b) {
  for (; a != b; a = a->below.get(), b = b->below.get())
    if (!a || !b || a->hash != b->hash || a->target != b->target) return false;
  return true;
}

bool operator==(const GrammarPath& a, const GrammarPath& b) {
  return a.node == b.node && same_stack(a.stack.get(), b.stack.get());
}

uint64_t hash_of(const GrammarPaths& paths) {
  uint64_t hash = paths.size();
  for (const GrammarPath& path : paths) hash = mix(hash, hash_of(path));
  return hash;
}

GrammarPaths settle(const Grammar& grammar, GrammarPaths paths) { return close(grammar, std::move(paths)); }

GrammarPaths paths_at(const Grammar& grammar, int node, const GrammarStack& stack) {
  return close(grammar, {{node, stack}});
}

GrammarPaths first_paths(const Grammar& grammar) {
  return paths_at(grammar, grammar.rule(grammar.root()).part.begin, nullptr);
}

GrammarPaths read_byte(const Grammar& grammar, const GrammarPaths& paths, uint8_t byte) {
  GrammarPaths next;
  for (const GrammarPath& path : paths) {
    if (path.node == GrammarPath::kLeft) continue;
    const Grammar::Node& node = grammar.node(path.node);
    if (node.characters >= 0) {
      const Grammar::Part part = grammar.character_part(node.characters);
      GrammarStack within;  // a character of several bytes, which is begun like a call
      for (const Grammar::Edge& edge : grammar.node(part.begin).edges) {
        if (byte < edge.first || byte > edge.last) continue;
        if (edge.target == part.end) {
          next.push_back({node.target, path.stack});
        } else {
          if (!within) within = push_frame(node.target, path.stack);
          next.push_back({edge.target, within});
        }
      }
    }
    for (const Grammar::Edge& edge : node.edges)
      if (byte >= edge.first && byte <= edge.last) next.push_back({edge.target, path.stack});
  }
  return next.empty() ? next : close(grammar, std::move(next));
}

}  // namespace megatron
