#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "megatron/inference/constraint/code_points.h"

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
    int characters = -1;     // class that one character is read of here; then the path goes on at `target`
    int target = -1;
  };
  // Part of a rule, between two nodes.
  struct Part {
    int begin, end;
  };
  struct Rule {
    Part part{-1, -1};
  };
  using Points = CodePoints;

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
  // The characters of a class; its bytes behind the first; and the classes within repeated parts.
  const Points& characters(int index) const { return classes_[static_cast<size_t>(index)].points; }
  const Part& character_part(int index) const { return classes_[static_cast<size_t>(index)].part; }
  std::vector<int> repeated_characters() const;

 private:
  // Characters in UTF-8: a rule of its own, which the nodes that read one of them share.
  struct CharacterClass {
    Points points;
    Part part;
    bool repeated = false;
  };

  int add_node();
  int class_of(const Points& points);
  void link(int from, int to) { nodes_[static_cast<size_t>(from)].empty.push_back(to); }
  void find_depths();
  void refuse_left_recursion(std::string_view subject) const;

  std::vector<Node> nodes_;
  std::vector<Rule> rules_;
  std::vector<bool> ends_;
  std::vector<int> depth_;
  std::vector<CharacterClass> classes_;
  std::map<Points, int> class_by_points_;
  int root_ = -1;
};

}  // namespace megatron
