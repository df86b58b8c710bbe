#include "megatron/training/run/weight_hash.h"

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
    for (size_t i = mine.size(); i < all.size(); ++i)
      if (all[i] != all[i % mine.size()])
        fail(
            "iteration {}: replicas have other weights: {} on rank {} of group {} is not that of its rank 0; "
            "a "
            "device may be broken, go on from a checkpoint",
            view.state.iteration, compared[i % mine.size()]->name, i / mine.size(), replicas.name());
  }

  int64_t interval_;
};

}  // namespace

std::shared_ptr<Callback> weight_hash_check(int64_t interval) {
  return std::make_shared<WeightHashCheck>(interval);
}

}  // namespace megatron
