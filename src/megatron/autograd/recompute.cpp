#include "megatron/autograd/recompute.h"

#include "megatron/autograd/rematerialize.h"

namespace megatron {
namespace {

// A body with what it needs to run again. It runs when somebody first asks for its results: the node that
// passes gradients through it, or a consumer that did not keep them.
struct Region {
  Region(RankContext& ctx, std::span<const Tensor> inputs, RegionBody body) : body(std::move(body)) {
    for (const Tensor& input : inputs) {
      kept.emplace_back(ctx, input);
      slots.push_back(input.grad_slot());
    }
  }

  void run(RankContext& ctx) {
    if (inner) return;
    inner = std::make_unique<Tape>(ctx);
    for (size_t i = 0; i < kept.size(); ++i) {
      Tensor input = kept[i].get(ctx);
      inputs.push_back(slots[i] ? inner->watch(input) : input);
    }
    kept.clear();
    TapeScope scope(ctx, inner.get());
    results = body(ctx, inputs);
    body = nullptr;
  }

  RegionBody body;
  std::vector<Saved> kept;
  std::vector<GradSlot> slots;
  std::unique_ptr<Tape> inner;
  std::vector<Tensor> inputs, results;
};

class RecomputeNode final : public Node {
 public:
  explicit RecomputeNode(std::shared_ptr<Region> region) : region_(std::move(region)) {}
  const char* name() const override { return "recompute"; }

  void backward_data(RankContext& ctx, Tape& tape) override {
    region_->run(ctx);
    Tape& inner = *region_->inner;
    std::vector<Tensor> results = std::move(region_->results), inputs = std::move(region_->inputs);
    std::vector<Tensor> reached, grads;
    for (size_t i = 0; i < results.size(); ++i) {
      Tensor grad = tape.take_grad(output(static_cast<int>(i)));
      if (!grad || !inner.tracks(results[i])) continue;
      reached.push_back(std::move(results[i]));
      grads.push_back(std::move(grad));
    }
    results.clear();
    inner.backward_data(ctx, reached, grads);
    for (size_t i = 0; i < inputs.size(); ++i)
      if (region_->slots[i]) tape.add_grad(ctx, region_->slots[i], inner.take_grad(inputs[i].grad_slot()));
  }
  void backward_weight(RankContext& ctx) override { region_->inner->backward_weight(ctx); }
  bool has_weight_step() const override { return true; }

 private:
  std::shared_ptr<Region> region_;
};

// Keeps the region in place of its results.
class PackResults final : public SavedTensorPacker {
 public:
  PackResults(RankContext& ctx, std::shared_ptr<Region> region, std::span<const Tensor> results)
      : region_(std::move(region)), previous_(ctx.packer), scope_(ctx, this) {
    for (const Tensor& result : results) results_.push_back(result.detach());
  }

  std::unique_ptr<PackedTensor> pack(RankContext& ctx, const Tensor& tensor) override {
    for (size_t i = 0; i < results_.size(); ++i)
      if (same_tensor(tensor, results_[i])) return std::make_unique<Result>(region_, i);
    return previous_ ? previous_->pack(ctx, tensor) : nullptr;
  }

 private:
  struct Result final : PackedTensor {
    Result(std::shared_ptr<Region> region, size_t index) : region(std::move(region)), index(index) {}
    Tensor unpack(RankContext& ctx) override {
      region->run(ctx);
      return region->results[index].detach();
    }
    std::shared_ptr<Region> region;
    size_t index;
  };

  std::shared_ptr<Region> region_;
  std::vector<Tensor> results_;
  SavedTensorPacker* previous_;
  PackerScope scope_;
};

// What the body gives, recorded as one node.
std::vector<Tensor> record_region(RankContext& ctx, std::span<const Tensor> inputs, RegionBody body,
                                  std::shared_ptr<Region>& region) {
  for (const Tensor& input : inputs) ctx.tracks(input);
  Tape* tape = ctx.tape;
  std::vector<Tensor> detached(inputs.size()), results;
  for (size_t i = 0; i < inputs.size(); ++i) detached[i] = inputs[i].detach();
  {
    NoGrad no_grad(ctx);
    results = body(ctx, detached);
  }
  region = std::make_shared<Region>(ctx, inputs, std::move(body));
  std::vector<Tensor*> outputs;
  for (Tensor& result : results) outputs.push_back(&result);
  tape->record(std::make_unique<RecomputeNode>(region), outputs);
  return results;
}

}  // namespace

std::vector<Tensor> recompute(RankContext& ctx, std::span<const Tensor> inputs, RegionBody body) {
  if (!ctx.tape) return body(ctx, inputs);
  std::shared_ptr<Region> region;
  return record_region(ctx, inputs, std::move(body), region);
}

Tensor recompute_for(RankContext& ctx, std::span<const Tensor> inputs, RegionBody body,
                     const std::function<Tensor(std::span<const Tensor> results)>& use) {
  if (!ctx.tape) return use(body(ctx, inputs));
  std::shared_ptr<Region> region;
  const std::vector<Tensor> results = record_region(ctx, inputs, std::move(body), region);
  PackResults scope(ctx, std::move(region), results);
  return use(results);
}

}  // namespace megatron
