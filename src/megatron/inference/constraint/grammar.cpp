#include "megatron/inference/constraint/grammar.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>

#include "megatron/base/refuse.h"
#include "megatron/tokenizers/unicode/utf8.h"

namespace megatron {
namespace {

constexpr int kUnreachable = std::numeric_limits<int>::max() / 2;

using ByteRanges = std::vector<std::pair<uint8_t, uint8_t>>;  // one a byte of a character

// Splits code points of one UTF-8 length so that every byte has a range of its own.
void split(char32_t first, char32_t last, std::vector<ByteRanges>& out) {
  std::string low, high;
  tokenizers::append_utf8(low, first);
  tokenizers::append_utf8(high, last);
  const size_t size = low.size();
  for (size_t i = 1; i < size; ++i) {
    const char32_t mask = (char32_t{1} << (6 * i)) - 1;  // of the last i bytes
    if ((first & ~mask) == (last & ~mask)) continue;
    if ((first & mask) != 0) {
      split(first, first | mask, out);
      split((first | mask) + 1, last, out);
      return;
    }
    if ((last & mask) != mask) {
      split(first, (last & ~mask) - 1, out);
      split(last & ~mask, last, out);
      return;
    }
  }
  ByteRanges ranges;
  for (size_t i = 0; i < size; ++i)
    ranges.emplace_back(static_cast<uint8_t>(low[i]), static_cast<uint8_t>(high[i]));
  out.push_back(std::move(ranges));
}

std::vector<ByteRanges> utf8_ranges(const Grammar::Points& points) {
  static constexpr std::array<std::pair<char32_t, char32_t>, 5> kLengths = {
      {{0, 0x7F}, {0x80, 0x7FF}, {0x800, 0xD7FF}, {0xE000, 0xFFFF}, {0x10000, 0x10FFFF}}};
  std::vector<ByteRanges> ranges;
  for (auto [first, last] : points)
    for (auto [from, to] : kLengths)
      if (first <= to && last >= from) split(std::max(first, from), std::min(last, to), ranges);
  return ranges;
}

}  // namespace

int Grammar::add_node() {
  require_input(nodes_.size() < kMaxNodes,
                "constraint: it needs more than {} states; use fewer or smaller repetitions", kMaxNodes);
  nodes_.emplace_back();
  return static_cast<int>(nodes_.size()) - 1;
}

Grammar::Part Grammar::literal(std::string_view bytes) {
  Part part = nothing();
  for (char c : bytes) {
    const int next = add_node();
    nodes_[static_cast<size_t>(part.end)].edges.push_back(
        {static_cast<uint8_t>(c), static_cast<uint8_t>(c), next});
    part.end = next;
  }
  return part;
}

Grammar::Part Grammar::literals(std::vector<std::string> texts) {
  std::sort(texts.begin(), texts.end());
  const Part whole = {add_node(), add_node()};
  std::vector<int> path = {whole.begin};  // nodes of the last text
  std::string last;
  for (const std::string& text : texts) {
    size_t shared = 0;
    while (shared < last.size() && shared < text.size() && last[shared] == text[shared]) ++shared;
    path.resize(shared + 1);
    for (size_t i = shared; i < text.size(); ++i) {
      const int next = add_node();
      const auto byte = static_cast<uint8_t>(text[i]);
      nodes_[static_cast<size_t>(path.back())].edges.push_back({byte, byte, next});
      path.push_back(next);
    }
    link(path.back(), whole.end);
    last = text;
  }
  return whole;
}

Grammar::Part Grammar::byte_range(uint8_t first, uint8_t last) {
  const int begin = add_node(), end = add_node();
  nodes_[static_cast<size_t>(begin)].edges.push_back({first, last, end});
  return {begin, end};
}

int Grammar::class_of(const Points& points) {
  Points own = text_points(points);
  auto [found, is_new] = class_by_points_.emplace(own, static_cast<int>(classes_.size()));
  if (!is_new) return found->second;
  const int end = add_node();
  std::map<std::vector<ByteRanges>, int> known = {{{{}}, end}};
  // The node from which any of some sequences of bytes leads to the end. A byte leads to one node, so that a
  // text has one reading within a character; sequences either begin with the same bytes or with others.
  const auto node_of = [&](const auto& self, const std::vector<ByteRanges>& ways) -> int {
    if (const auto at = known.find(ways); at != known.end()) return at->second;
    const int node = add_node();
    for (size_t i = 0; i < ways.size();) {
      const auto [first, last] = ways[i][0];
      std::vector<ByteRanges> behind;
      for (; i < ways.size() && ways[i][0].first == first; ++i)
        behind.emplace_back(ways[i].begin() + 1, ways[i].end());
      const int target = self(self, behind);
      nodes_[static_cast<size_t>(node)].edges.push_back({first, last, target});
    }
    return known[ways] = node;
  };
  const int begin = node_of(node_of, utf8_ranges(own));
  define_rule(declare_rule(), {begin, end});
  classes_.push_back({std::move(own), {begin, end}, false});
  return found->second;
}

Grammar::Part Grammar::character(const Points& points) {
  const int own = class_of(points);
  const int begin = add_node(), end = add_node();
  nodes_[static_cast<size_t>(begin)].characters = own;
  nodes_[static_cast<size_t>(begin)].target = end;
  return {begin, end};
}

std::vector<int> Grammar::repeated_characters() const {
  std::vector<int> repeated;
  for (size_t i = 0; i < classes_.size(); ++i)
    if (classes_[i].repeated) repeated.push_back(static_cast<int>(i));
  return repeated;
}

Grammar::Part Grammar::sequence(const std::vector<Part>& parts) {
  if (parts.empty()) return nothing();
  for (size_t i = 0; i + 1 < parts.size(); ++i) link(parts[i].end, parts[i + 1].begin);
  return {parts.front().begin, parts.back().end};
}

Grammar::Part Grammar::alternatives(const std::vector<Part>& parts) {
  if (parts.size() == 1) return parts[0];
  const int begin = add_node(), end = add_node();
  for (const Part& part : parts) {
    link(begin, part.begin);
    link(part.end, end);
  }
  return {begin, end};
}

Grammar::Part Grammar::optional(Part part) { return alternatives({part, nothing()}); }

Grammar::Part Grammar::repeat(int64_t min, int64_t max, const std::function<Part()>& make_part) {
  const auto make = [&] {
    const size_t before = nodes_.size();
    const Part part = make_part();
    for (size_t i = before; i < nodes_.size(); ++i)
      if (const int own = nodes_[i].characters; own >= 0) classes_[static_cast<size_t>(own)].repeated = true;
    return part;
  };
  Part whole = nothing();
  const auto append = [&](Part part) {
    link(whole.end, part.begin);
    whole.end = part.end;
  };
  for (int64_t i = 0; i < min; ++i) append(make());
  if (max < 0) {
    const int hub = add_node();
    append({hub, hub});
    const Part body = make();
    link(hub, body.begin);
    link(body.end, hub);
    append(nothing());
    return whole;
  }
  const int end = add_node();
  for (int64_t i = min; i < max; ++i) {
    link(whole.end, end);
    append(make());
  }
  append({end, end});
  return whole;
}

int Grammar::declare_rule() {
  rules_.emplace_back();
  return static_cast<int>(rules_.size()) - 1;
}

Grammar::Part Grammar::call(int rule) {
  const int begin = add_node(), end = add_node();
  nodes_[static_cast<size_t>(begin)].rule = rule;
  nodes_[static_cast<size_t>(begin)].target = end;
  return {begin, end};
}

// Relaxes until nothing changes. What a node needs is the least over its ways to the end.
void Grammar::find_depths() {
  depth_.assign(nodes_.size(), kUnreachable);
  std::vector<std::vector<int>> before(nodes_.size()), callers(rules_.size());
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const int node = static_cast<int>(i);
    for (const Edge& edge : nodes_[i].edges) before[static_cast<size_t>(edge.target)].push_back(node);
    for (int target : nodes_[i].empty) before[static_cast<size_t>(target)].push_back(node);
    if (nodes_[i].characters >= 0) before[static_cast<size_t>(nodes_[i].target)].push_back(node);
    if (nodes_[i].rule >= 0) {
      before[static_cast<size_t>(nodes_[i].target)].push_back(node);
      callers[static_cast<size_t>(nodes_[i].rule)].push_back(node);
    }
  }
  std::vector<int> rule_of_begin(nodes_.size(), -1), work;
  for (size_t i = 0; i < rules_.size(); ++i) {
    if (rules_[i].part.begin < 0) continue;
    rule_of_begin[static_cast<size_t>(rules_[i].part.begin)] = static_cast<int>(i);
    depth_[static_cast<size_t>(rules_[i].part.end)] = 0;
    for (int node : before[static_cast<size_t>(rules_[i].part.end)]) work.push_back(node);
    if (rules_[i].part.begin == rules_[i].part.end)
      for (int node : callers[i]) work.push_back(node);
  }
  while (!work.empty()) {
    const auto at = static_cast<size_t>(work.back());
    work.pop_back();
    const Node& node = nodes_[at];
    int least = depth_[at];
    for (const Edge& edge : node.edges) least = std::min(least, depth_[static_cast<size_t>(edge.target)]);
    for (int target : node.empty) least = std::min(least, depth_[static_cast<size_t>(target)]);
    if (node.characters >= 0 && !characters(node.characters).empty())
      least = std::min(least, depth_[static_cast<size_t>(node.target)]);
    if (node.rule >= 0) {
      const int begin = rules_[static_cast<size_t>(node.rule)].part.begin;
      least = std::min(
          least, std::max(1 + depth_[static_cast<size_t>(begin)], depth_[static_cast<size_t>(node.target)]));
    }
    if (least >= depth_[at] || least >= kUnreachable) continue;
    depth_[at] = least;
    work.insert(work.end(), before[at].begin(), before[at].end());
    if (const int rule = rule_of_begin[at]; rule >= 0)
      work.insert(work.end(), callers[static_cast<size_t>(rule)].begin(),
                  callers[static_cast<size_t>(rule)].end());
  }
}

// A rule that reaches a call of itself before any byte would never begin.
void Grammar::refuse_left_recursion(std::string_view subject) const {
  // Rules whose text may be empty: then what stands behind their call is reached without a byte.
  std::vector<bool> may_be_empty(rules_.size());
  const auto reached_of = [&](size_t rule, std::vector<int>& called) {
    std::vector<bool> seen(nodes_.size());
    std::vector<int> work = {rules_[rule].part.begin};
    bool empty = false;
    while (!work.empty()) {
      const int at = work.back();
      work.pop_back();
      if (seen[static_cast<size_t>(at)]) continue;
      seen[static_cast<size_t>(at)] = true;
      empty = empty || at == rules_[rule].part.end;
      const Node& node = nodes_[static_cast<size_t>(at)];
      work.insert(work.end(), node.empty.begin(), node.empty.end());
      if (node.rule < 0) continue;
      called.push_back(node.rule);
      if (may_be_empty[static_cast<size_t>(node.rule)]) work.push_back(node.target);
    }
    return empty;
  };
  std::vector<std::vector<int>> called(rules_.size());
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t rule = 0; rule < rules_.size(); ++rule) {
      called[rule].clear();
      if (rules_[rule].part.begin < 0) continue;
      if (reached_of(rule, called[rule]) && !may_be_empty[rule]) may_be_empty[rule] = changed = true;
    }
  }
  std::vector<int> colour(rules_.size());  // 1: on the path, 2: done
  std::vector<std::pair<int, size_t>> path;
  for (size_t start = 0; start < rules_.size(); ++start) {
    if (colour[start] != 0) continue;
    path.assign(1, {static_cast<int>(start), 0});
    colour[start] = 1;
    while (!path.empty()) {
      auto& [rule, next] = path.back();
      const auto& targets = called[static_cast<size_t>(rule)];
      if (next == targets.size()) {
        colour[static_cast<size_t>(rule)] = 2;
        path.pop_back();
        continue;
      }
      const int target = targets[next++];
      require_input(colour[static_cast<size_t>(target)] != 1,
                    "{}: it refers to itself without anything between", subject);
      if (colour[static_cast<size_t>(target)] == 0) {
        colour[static_cast<size_t>(target)] = 1;
        path.emplace_back(target, 0);
      }
    }
  }
}

void Grammar::finish(int root, std::string_view subject) {
  root_ = root;
  refuse_left_recursion(subject);
  ends_.assign(nodes_.size(), false);
  for (Rule& rule : rules_) {
    if (rule.part.begin < 0) continue;
    const int end = add_node();  // of its own, so that nothing leads on from it
    link(rule.part.end, end);
    rule.part.end = end;
    ends_.resize(nodes_.size());
    ends_[static_cast<size_t>(end)] = true;
  }
  find_depths();
  require_input(depth_needed(rule(root).part.begin) < kMaxDepth,
                "{}: no text satisfies it (something required contradicts itself or never ends)", subject);
  const auto leads_nowhere = [&](int node) { return depth_needed(node) > kMaxDepth; };
  for (Node& node : nodes_) {
    std::erase_if(node.edges, [&](const Edge& edge) { return leads_nowhere(edge.target); });
    std::erase_if(node.empty, leads_nowhere);
    if (node.characters >= 0 && (leads_nowhere(node.target) || characters(node.characters).empty()))
      node.characters = -1;
  }
}

}  // namespace megatron
