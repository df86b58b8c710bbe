#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace megatron {

// Texts that a constraint allows, as networks of nodes over bytes that may call each other: a finite
// automaton where nothing is recursive. A path goes from a rule's begin to its end.
class Grammar {
 public:
  struct Edge {
    uint8_t first, last;  // bytes
    int target;
  };
  struct Node {
    std::vector<Edge> edges;
    std::vector<int> empty;  // nodes that are reached without a byte
    int rule = -1;           // called here; then the path goes on at `target`
    int target = -1;
  };
  // Part of a rule, between two nodes.
  struct Part {
    int begin, end;
  };
  struct Rule {
    Part part{-1, -1};
  };
  using Points = std::vector<std::pair<char32_t, char32_t>>;  // ranges of code points

  static constexpr size_t kMaxNodes = 200'000;
  static constexpr int kMaxDepth = 200;  // of calls within calls

  Part nothing() {
    const int node = add_node();
    return {node, node};
  }
  Part literal(std::string_view bytes);
  // Any of several texts, sharing their beginnings.
  Part literals(std::vector<std::string> texts);
  Part byte_range(uint8_t first, uint8_t last);
  // One character, in UTF-8; surrogates never count.
  Part character(const Points& points);
  Part sequence(const std::vector<Part>& parts);
  Part alternatives(const std::vector<Part>& parts);
  Part optional(Part part);
  // Between `min` and `max` (-1: without end) of what `make` makes anew each time.
  Part repeat(int64_t min, int64_t max, const std::function<Part()>& make);

  // A rule is declared before its part is known, so that it may call itself.
  int declare_rule();
  void define_rule(int rule, Part part) { rules_[static_cast<size_t>(rule)].part = part; }
  Part call(int rule);

  // Checks that every text can come to an end and that no rule calls itself without a byte; a ConfigError
  // that begins with `subject` else. Removes what leads nowhere.
  void finish(int root, std::string_view subject);

  int root() const { return root_; }
  const Node& node(int index) const { return nodes_[static_cast<size_t>(index)]; }
  const Rule& rule(int index) const { return rules_[static_cast<size_t>(index)]; }
  // Whether a node is the end of its rule; ends have no way on.
  bool is_end(int index) const { return ends_[static_cast<size_t>(index)]; }
  // Calls within calls that a path from a node to its rule's end takes at least.
  int depth_needed(int index) const { return depth_[static_cast<size_t>(index)]; }
  size_t size() const { return nodes_.size(); }

 private:
  int add_node();
  void link(int from, int to) { nodes_[static_cast<size_t>(from)].empty.push_back(to); }
  void find_depths();
  void refuse_left_recursion(std::string_view subject) const;

  std::vector<Node> nodes_;
  std::vector<Rule> rules_;
  std::vector<bool> ends_;
  std::vector<int> depth_;
  int root_ = -1;
};

}  // namespace megatron
