#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace megatron::tokenizers {

// Texts with a number each, found as prefixes of other texts. Children of a node lie together, sorted.
class ByteTrie {
 public:
  ByteTrie() = default;
  // The last number of a text that comes twice counts. Numbers are not negative.
  explicit ByteTrie(std::vector<std::pair<std::string_view, int32_t>> texts);

  // Calls visit(length, number) for each text that `text` begins with, the shortest first.
  template <class Visit>
  void prefixes(std::string_view text, Visit visit) const {
    if (nodes_.empty()) return;
    uint32_t node = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      node = child(node, static_cast<unsigned char>(text[i]));
      if (node == 0) return;
      if (nodes_[node].number >= 0) visit(i + 1, nodes_[node].number);
    }
  }

 private:
  struct Node {
    uint32_t first_child = 0;
    uint16_t children = 0;
    unsigned char byte = 0;
    int32_t number = -1;
  };
  uint32_t child(uint32_t node, unsigned char byte) const {
    if (node == 0) return roots_[byte];
    const Node& parent = nodes_[node];
    uint32_t low = parent.first_child, high = low + parent.children;
    while (low < high) {
      const uint32_t middle = (low + high) / 2;
      if (nodes_[middle].byte < byte)
        low = middle + 1;
      else
        high = middle;
    }
    return low < parent.first_child + parent.children && nodes_[low].byte == byte ? low : 0;
  }

  std::vector<Node> nodes_;
  uint32_t roots_[256] = {};
};

}  // namespace megatron::tokenizers
