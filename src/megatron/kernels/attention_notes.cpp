#include "megatron/kernels/attention_notes.h"

#include <fmt/format.h>

namespace megatron {

std::string AttentionNote::line() const {
  std::string text =
      fmt::format("{} of {}: {}", backward ? "gradient of attention" : "attention", shape, kernel);
  if (!refused.empty()) text += fmt::format(", for {}", refused);
  return text;
}

std::string describe_attention(const AttentionArgs& a) {
  const int64_t queries = a.q.size(0), keys = a.k.size(0), heads = a.q.size(1), groups = a.k.size(1);
  std::string text;
  if (a.cu_queries)
    text = fmt::format("{} tokens of packed sequences", queries);
  else
    text = fmt::format("{} x {} tokens", a.batch, queries / a.batch);
  if (keys != queries) text += fmt::format(" on {}", a.cu_queries ? keys : keys / a.batch);
  const int64_t d = a.q.size(2), dv = a.v.size(2);
  text += fmt::format(", {} heads of {} channels", heads,
                      d == dv ? fmt::format("{}", d) : fmt::format("{}/{}", d, dv));
  if (groups != heads) text += fmt::format(" on {} key heads", groups);
  text += a.causal ? ", causal" : ", full";
  if (a.window_left >= 0 || a.window_right >= 0)
    text += fmt::format(", in a window of {}", 1 + std::max<int64_t>(0, a.window_left) +
                                                   (a.causal ? 0 : std::max<int64_t>(0, a.window_right)));
  if (a.softcap != 0) text += fmt::format(", scores capped at {}", a.softcap);
  if (a.sinks) text += ", with sinks";
  if (a.bias) text += ", with a bias";
  if (a.dropout > 0) text += ", with dropout";
  return text + fmt::format(", {}", a.q.dtype());
}

void AttentionNotes::add(const AttentionArgs& a, bool backward, std::string_view kernel,
                         std::string_view refused) {
  const int64_t features = (a.causal ? 1 : 0) | (a.sinks ? 2 : 0) | (a.bias ? 4 : 0) |
                           (a.dropout > 0 ? 8 : 0) | (backward ? 16 : 0) | (a.cu_queries ? 32 : 0) |
                           static_cast<int64_t>(a.q.dtype()) << 8;
  const Key key{kernel.data(), refused.data(), a.q.size(0),
                a.k.size(0),   a.q.size(1),    a.k.size(1),
                a.q.size(2),   a.v.size(2),    a.cu_queries ? 0 : a.batch,
                a.window_left, a.window_right, features,
                a.softcap};
  constexpr size_t most = 256;  // lengths that grow, as of a cache, would make notes without end
  std::lock_guard lock(mutex_);
  if (notes_.size() == most && !places_.contains(key)) return;
  const auto [place, fresh] = places_.emplace(key, notes_.size());
  if (fresh) notes_.push_back({describe_attention(a), backward, std::string(kernel), std::string(refused)});
  last_[backward] = place->second;
}

std::vector<AttentionNote> AttentionNotes::since(size_t count) const {
  std::lock_guard lock(mutex_);
  if (count >= notes_.size()) return {};
  return {notes_.begin() + static_cast<std::ptrdiff_t>(count), notes_.end()};
}

AttentionNote AttentionNotes::last(bool backward) const {
  std::lock_guard lock(mutex_);
  return last_[backward] < notes_.size() ? notes_[last_[backward]] : AttentionNote{};
}

}  // namespace megatron
