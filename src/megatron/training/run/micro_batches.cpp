#include "megatron/training/run/micro_batches.h"

#include <algorithm>

namespace megatron {
namespace {

constexpr int64_t kIgnored = -100;  // a label that does not count

}  // namespace

MicroBatches::MicroBatches(std::span<const int64_t> tokens, int64_t size, int64_t length,
                           std::span<const int64_t> lengths, std::span<const std::vector<int64_t>> documents,
                           const ContextParallel& context)
    : tokens_(tokens),
      documents_(documents),
      size_(size),
      lengths_(lengths.begin(), lengths.end()),
      context_(context) {
  auto all = static_cast<int64_t>(tokens.size()), each = size * (length + 1);
  if (lengths.empty()) lengths_.assign(each > 0 ? static_cast<size_t>(all / each) : 0, length);
  int64_t end = 0;
  for (int64_t own : lengths_) {
    begins_.push_back(end);
    end += size * (own + 1);
  }
  require(!lengths_.empty() && end == all,
          "training step: {} tokens are no whole number of micro-batches of {} sequences of {} + 1", all,
          size, lengths_.empty() ? length : lengths_[0]);
  require(documents.empty() || static_cast<int64_t>(documents.size()) == count() * size,
          "training step: documents are given for {} rows, but there are {}", documents.size(),
          count() * size);
}

TokenRows MicroBatches::rows(int64_t microbatch) const {
  TokenRows rows{.rows = size_, .length = lengths_[static_cast<size_t>(microbatch)], .documents = {}};
  if (documents_.empty()) return rows;
  for (int64_t row = microbatch * size_; row < (microbatch + 1) * size_; ++row) {
    const std::vector<int64_t>& lengths = documents_[static_cast<size_t>(row)];
    rows.documents.insert(rows.documents.end(), lengths.begin(), lengths.end());
  }
  return rows;
}

int64_t MicroBatches::counted_labels(int64_t microbatch) const {
  auto at = static_cast<size_t>(microbatch);
  int64_t row = lengths_[at] + 1, count = 0;
  for (int64_t i = 0; i < size_; ++i) {
    auto labels =
        tokens_.subspan(static_cast<size_t>(begins_[at] + i * row + 1), static_cast<size_t>(row - 1));
    count += static_cast<int64_t>(labels.size()) - std::count(labels.begin(), labels.end(), kIgnored);
  }
  return count;
}

Tensor MicroBatches::inputs(RankContext& ctx, int64_t microbatch) const {
  std::vector<int64_t> ids = held(microbatch, 0);
  std::replace(ids.begin(), ids.end(), kIgnored, int64_t{0});
  return ctx.from_vector(ids, {static_cast<int64_t>(ids.size())});
}

Tensor MicroBatches::labels(RankContext& ctx, int64_t microbatch) const {
  std::vector<int64_t> ids = held(microbatch, 1);
  return ctx.from_vector(ids, {static_cast<int64_t>(ids.size())});
}

std::vector<int64_t> MicroBatches::held(int64_t microbatch, int64_t offset) const {
  std::vector<int64_t> ids = held_tokens(rows(microbatch), context_);
  int64_t length = lengths_[static_cast<size_t>(microbatch)];
  int64_t first = begins_[static_cast<size_t>(microbatch)] + offset;
  // Rows of tokens are one longer than those of inputs and labels.
  for (int64_t& id : ids) id = tokens_[static_cast<size_t>(first + id + id / length)];
  return ids;
}

MicroBatches::Mtp MicroBatches::mtp(RankContext& ctx, int64_t microbatch, int64_t depth) const {
  const TokenRows shape = rows(microbatch);
  const int64_t begin = begins_[static_cast<size_t>(microbatch)];
  // The token at a place of the rows, or the one after it.
  const auto token = [&](int64_t place, int64_t offset) {
    const int64_t row = place / shape.length;
    return tokens_[static_cast<size_t>(begin + row * (shape.length + 1) + place % shape.length + offset)];
  };
  std::vector<int64_t> ids, labels;  // of all ranks
  int64_t counted = 0, end = 0;
  for (int64_t length : shape.sequences()) {
    end += length;
    for (int64_t place = end - length; place < end; ++place) {
      const bool inside = place + depth < end;
      ids.push_back(inside ? std::max<int64_t>(0, token(place + depth, 0)) : 0);
      labels.push_back(inside ? token(place + depth, 1) : kIgnored);
      counted += labels.back() != kIgnored;
    }
  }
  std::vector<int64_t> own_ids, own_labels;
  for (int64_t place : held_tokens(shape, context_)) {
    own_ids.push_back(ids[static_cast<size_t>(place)]);
    own_labels.push_back(labels[static_cast<size_t>(place)]);
  }
  const Shape held_shape{static_cast<int64_t>(own_ids.size())};
  return {ctx.from_vector(own_ids, held_shape), ctx.from_vector(own_labels, held_shape), counted};
}

}  // namespace megatron
