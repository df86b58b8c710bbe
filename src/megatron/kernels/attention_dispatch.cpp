#include "megatron/kernels/attention_dispatch.h"

#include <fmt/format.h>

#include "megatron/kernels/kernel_table.h"

namespace megatron {

std::string AttentionDispatch::line() const {
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
  text += fmt::format(", {} heads of head_dim {}", heads,
                      d == dv ? fmt::format("{}", d) : fmt::format("{}/{}", d, dv));
  if (groups != heads) text += fmt::format(" on {} KV heads", groups);
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

void AttentionDispatchLog::add(const AttentionArgs& a, bool backward, std::string_view kernel,
                               std::string_view refused) {
  const int64_t features = (a.causal ? 1 : 0) | (a.sinks ? 2 : 0) | (a.bias ? 4 : 0) |
                           (a.dropout > 0 ? 8 : 0) | (backward ? 16 : 0) | (a.cu_queries ? 32 : 0) |
                           static_cast<int64_t>(a.q.dtype()) << 8;
  const Key key{kernel.data(), refused.data(), a.q.size(0),
                a.k.size(0),   a.q.size(1),    a.k.size(1),
                a.q.size(2),   a.v.size(2),    a.cu_queries ? 0 : a.batch,
                a.window_left, a.window_right, features,
                a.softcap};
  constexpr size_t most = 256;  // lengths that grow, as of a cache, would add entries without end
  std::lock_guard lock(mutex_);
  if (entries_.size() == most && !index_.contains(key)) return;
  const auto [position, fresh] = index_.emplace(key, entries_.size());
  if (fresh) entries_.push_back({describe_attention(a), backward, std::string(kernel), std::string(refused)});
  last_[backward] = position->second;
}

std::vector<AttentionDispatch> AttentionDispatchLog::since(size_t count) const {
  std::lock_guard lock(mutex_);
  if (count >= entries_.size()) return {};
  return {entries_.begin() + static_cast<std::ptrdiff_t>(count), entries_.end()};
}

AttentionDispatch AttentionDispatchLog::last(bool backward) const {
  std::lock_guard lock(mutex_);
  return last_[backward] < entries_.size() ? entries_[last_[backward]] : AttentionDispatch{};
}

std::vector<AttentionDispatch> attention_dispatches(const KernelContext& ctx, size_t after) {
  const KernelTable& table = kernels_for(ctx.stream.runtime().device());
  return table.attention_log ? table.attention_log(ctx).since(after) : std::vector<AttentionDispatch>();
}

AttentionKernels probe_attention(const KernelContext& ctx, const AttentionBackwardArgs& args) {
  const KernelTable& table = kernels_for(ctx.stream.runtime().device());
  if (table.attention_log) {
    table.attention(ctx, args.forward);
    table.attention_backward(ctx, args);
    const AttentionDispatchLog& log = table.attention_log(ctx);
    return {log.last(false), log.last(true)};
  }
  const std::string own = "own tiles (" + cpu_instruction_set() + ")",
                    shape = describe_attention(args.forward);
  return {{shape, false, own, ""}, {shape, true, own, ""}};
}

}  // namespace megatron
