#include "megatron/inference/constraint/behind_marker.h"

#include <algorithm>

namespace megatron {
namespace {

// The node that a text leads to.
std::optional<size_t> node_of(const TokenTrie& trie, std::string_view text) {
  size_t begin = 0, end = trie.nodes().size(), found = end;
  for (char c : text) {
    size_t at = begin;
    while (at < end && trie.nodes()[at].byte != static_cast<uint8_t>(c)) at = trie.nodes()[at].end;
    if (at >= end) return {};
    found = at;
    begin = at + 1;
    end = trie.nodes()[at].end;
  }
  return found;
}

class BehindMarker : public Constraint, public std::enable_shared_from_this<BehindMarker> {
 public:
  BehindMarker(SharedVocabulary vocabulary, std::string marker, std::optional<int64_t> marker_token,
               std::shared_ptr<const Constraint> inner)
      : vocabulary_(std::move(vocabulary)),
        marker_(std::move(marker)),
        marker_token_(marker_token),
        inner_(std::move(inner)) {}

  std::unique_ptr<ConstraintState> start() const override;

  std::unique_ptr<ConstraintState> start_inner() const { return inner_->start(); }
  bool is_marker(int64_t token) const { return token == marker_token_; }
  const std::string& marker() const { return marker_; }
  std::string_view bytes_of(int64_t token) const {
    if (token < 0 || token >= std::ssize(vocabulary_->bytes)) return {};
    return vocabulary_->bytes[static_cast<size_t>(token)];
  }
  const TokenTrie& trie() const { return vocabulary_->trie; }

 private:
  SharedVocabulary vocabulary_;
  std::string marker_;
  std::optional<int64_t> marker_token_;
  std::shared_ptr<const Constraint> inner_;
};

class BehindMarkerState : public ConstraintState {
 public:
  explicit BehindMarkerState(std::shared_ptr<const BehindMarker> constraint)
      : constraint_(std::move(constraint)) {}

  void allowed(std::span<uint32_t> bits) const override {
    if (inner_) return inner_->allowed(bits);
    std::fill(bits.begin(), bits.end(), ~0U);
    const std::string_view marker = constraint_->marker();
    for (size_t read = 0; read < marker.size(); ++read) {
      if (!std::string_view(last_).ends_with(marker.substr(0, read))) continue;
      const std::optional<size_t> node = node_of(constraint_->trie(), marker.substr(read));
      if (!node) continue;
      constraint_->trie().visit_below(*node, [&](const std::string& suffix, int64_t token) {
        if (!suffix.empty() && static_cast<size_t>(token) / 32 < bits.size())
          bits[static_cast<size_t>(token) / 32] &= ~(1U << (token % 32));
      });
    }
  }

  void advance(int64_t token) override {
    if (inner_) return inner_->advance(token);
    const std::string& marker = constraint_->marker();
    last_ += constraint_->bytes_of(token);
    if (constraint_->is_marker(token) || last_.find(marker) != std::string::npos) {
      inner_ = constraint_->start_inner();
      return;
    }
    if (last_.size() >= marker.size()) last_.erase(0, last_.size() - marker.size() + 1);
  }

 private:
  std::shared_ptr<const BehindMarker> constraint_;
  std::string last_;                        // bytes in which the marker may begin
  std::unique_ptr<ConstraintState> inner_;  // behind the marker
};

std::unique_ptr<ConstraintState> BehindMarker::start() const {
  return std::make_unique<BehindMarkerState>(shared_from_this());
}

}  // namespace

std::shared_ptr<const Constraint> constrain_behind(const SharedVocabulary& vocabulary, std::string marker,
                                                   std::optional<int64_t> marker_token,
                                                   std::shared_ptr<const Constraint> inner) {
  return std::make_shared<BehindMarker>(vocabulary, std::move(marker), marker_token, std::move(inner));
}

}  // namespace megatron
