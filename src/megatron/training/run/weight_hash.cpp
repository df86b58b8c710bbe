#include "megatron/training/run/weight_hash.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "megatron/base/error.h"
#include "megatron/base/hash.h"

namespace megatron {
namespace {

uint64_t hash_of(RankContext& ctx, const Tensor& value) {
  std::string bytes(value.bytes(), '\0');
  ctx.to_host(value, bytes.data());
  return hash_text(bytes);
}

class WeightHashCheck final : public Callback {
 public:
  explicit WeightHashCheck(int64_t interval) : interval_(interval) {}

  void on(RunEvent event, RunView& view) override {
    if (event != RunEvent::step_end || view.state.iteration % interval_ != 0) return;
    view.trainer.finish_parameters();
    for (const bool expert : {false, true})
      compare(view, expert, view.trainer.parallel().group(expert ? Axis::edp : Axis::dp_cp));
  }

 private:
  static void compare(RunView& view, bool expert, const ProcessGroup& replicas) {
    std::vector<const Parameter*> compared;
    std::vector<uint64_t> own;
    for (const Parameter* parameter : view.trainer.parameters()) {
      if (parameter->expert != expert || parameter->sharded || parameter->value.numel() == 0) continue;
      compared.push_back(parameter);
      own.push_back(hash_of(view.ctx, parameter->value));
    }
    if (own.empty() || replicas.size() == 1) return;
    const auto count = static_cast<int64_t>(own.size());
    std::vector<int64_t> mine(own.begin(), own.end());
    const Tensor part = view.ctx.from_vector<int64_t>(mine, {count});
    const Tensor whole = view.ctx.empty({count * replicas.size()}, DType::I64);
    replicas.all_gather(part, whole).wait();
    const std::vector<int64_t> all = view.ctx.to_vector<int64_t>(whole);
    for (size_t i = 0; i < mine.size(); ++i) {
      std::vector<int64_t> hashes;
      for (size_t at = i; at < all.size(); at += mine.size()) hashes.push_back(all[at]);
      if (std::ranges::count(hashes, hashes[0]) == std::ssize(hashes)) continue;
      const size_t odd = odd_rank(hashes);
      const std::vector<int>& ranks = replicas.world_ranks();
      fail(
          "iteration {}: replicas have other weights: {} on rank {} is not that of {}; its device may be "
          "broken, "
          "go on from a checkpoint without it",
          view.state.iteration, compared[i]->name, ranks[odd],
          has_majority(hashes) ? fmt::format("most of its peers (ranks {})", fmt::join(ranks, " "))
                               : fmt::format("rank {}: one of the two is wrong", ranks[odd == 0 ? 1 : 0]));
    }
  }

  static bool has_majority(const std::vector<int64_t>& hashes) {
    return std::ranges::any_of(
        hashes, [&](int64_t hash) { return 2 * std::ranges::count(hashes, hash) > std::ssize(hashes); });
  }
  // The first replica whose hash is not that of most; where they are divided, the first that differs from 0.
  static size_t odd_rank(const std::vector<int64_t>& hashes) {
    const auto as_many = [&](int64_t hash) { return std::ranges::count(hashes, hash); };
    for (size_t rank = 0; rank < hashes.size(); ++rank)
      if (2 * as_many(hashes[rank]) < std::ssize(hashes) || hashes[rank] != hashes[0]) return rank;
    return 0;
  }

  int64_t interval_;
};

}  // namespace

std::shared_ptr<Callback> weight_hash_check(int64_t interval) {
  return std::make_shared<WeightHashCheck>(interval);
}

}  // namespace megatron
