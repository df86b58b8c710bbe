#include "megatron/tokenizers/models/byte_trie.h"

#include <algorithm>

namespace megatron::tokenizers {

ByteTrie::ByteTrie(std::vector<std::pair<std::string_view, int32_t>> texts) {
  std::stable_sort(texts.begin(), texts.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  struct Pending {
    uint32_t node;
    size_t begin, end, depth;  // texts of this node share `depth` bytes
  };
  nodes_.emplace_back();
  std::vector<Pending> todo{{0, 0, texts.size(), 0}};
  for (size_t next = 0; next < todo.size(); ++next) {
    Pending now = todo[next];
    while (now.begin < now.end && texts[now.begin].first.size() == now.depth)
      nodes_[now.node].number = texts[now.begin++].second;
    nodes_[now.node].first_child = static_cast<uint32_t>(nodes_.size());
    for (size_t i = now.begin; i < now.end;) {
      const char byte = texts[i].first[now.depth];
      size_t end = i;
      while (end < now.end && texts[end].first[now.depth] == byte) ++end;
      const auto child = static_cast<uint32_t>(nodes_.size());
      nodes_.emplace_back().byte = static_cast<unsigned char>(byte);
      ++nodes_[now.node].children;
      if (now.node == 0) roots_[static_cast<unsigned char>(byte)] = child;
      todo.push_back({child, i, end, now.depth + 1});
      i = end;
    }
  }
}

}  // namespace megatron::tokenizers
