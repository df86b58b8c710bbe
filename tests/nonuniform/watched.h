#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>

#include "nonuniform/layouts.h"
#include "parity/pass_through.h"

// Unequal replicas whose communication a test sees, and may spoil.
namespace megatron::testing {

// Sees every operation, and with `group` as the name of what is made, every split.
using Hook = std::function<void(const std::string& group, int world_rank, CommRequest& request)>;

class Watched final : public PassThrough {
 public:
  Watched(ProcessGroup inner, std::shared_ptr<const Hook> hook)
      : PassThrough(std::move(inner)), hook_(std::move(hook)) {}

 private:
  void change(CommRequest& request) override {
    (*hook_)(name(), world_ranks()[static_cast<size_t>(rank())], request);
  }
  std::shared_ptr<GroupBackend> split(CommRequest request) override {
    (*hook_)(request.name, world_ranks()[static_cast<size_t>(rank())], request);
    return PassThrough::split(std::move(request));
  }
  std::shared_ptr<GroupBackend> part(ProcessGroup group) override {
    return std::make_shared<Watched>(std::move(group), hook_);
  }

  std::shared_ptr<const Hook> hook_;
};

inline Trained train_watched(const Config& config, const Nonuniform& layout, int steps, Hook hook,
                             DType dtype = DType::F64) {
  auto shared = std::make_shared<const Hook>(std::move(hook));
  return train(config, sizes_of(layout), batches_for(config, steps), dtype, [shared](const ProcessGroup& w) {
    return ProcessGroup(std::make_shared<Watched>(w, shared));
  });
}

// Units of all kinds divide by 8 and 6.
inline Config even_units() {
  Config config = tied_gpt();
  config.model = llama_style(
      {.layers = 2, .hidden = 48, .heads = 24, .groups = 24, .ffn = 96, .vocab = 96, .length = 8});
  config.model.share_embeddings_and_output_weights = true;
  config.train.global_batch_size = 14;
  return config;
}

inline bool copies_differ(const Trained& many) {
  return std::any_of(many.parameters.begin(), many.parameters.end(),
                     [](const auto& entry) { return entry.second.copies_apart > 0; });
}

// Whether ranks disagree, or norms, gradients or weights are not those of one rank.
inline bool differs_from(const Trained& one, const Trained& many) {
  std::string where;
  for (size_t i = 0; i < one.losses.size(); ++i)
    if (!(std::abs(one.grad_norms[i] - many.grad_norms[i]) <= 1e-8 * one.grad_norms[i])) return true;
  return many.ranks_apart > 0 || difference(one.gradients, many.gradients, &where) > 1e-8 ||
         difference(one.parameters, many.parameters, &where) > 1e-8;
}

inline bool is_red(const Trained& one, const Trained& many) {
  return copies_differ(many) || differs_from(one, many);
}

inline void zero(const Tensor& tensor) { std::memset(tensor.raw(), 0, tensor.bytes()); }

}  // namespace megatron::testing
