#include "megatron/training/run/routing_data.h"

#include "megatron/checkpoint/file_and_key.h"
#include "megatron/checkpoint/safetensors.h"
#include "megatron/training/run/run_data.h"
#include "megatron/training/step/replayed_experts.h"

namespace megatron {
namespace {

class RoutedSource final : public BatchSource {
 public:
  RoutedSource(std::shared_ptr<const BatchSource> source, const Tensor& experts, int64_t batch)
      : source_(std::move(source)), experts_(experts), batch_(batch) {}
  int64_t length() const override { return source_->length(); }
  int64_t samples() const override { return source_->samples(); }

  std::vector<Batch> step(const StepRequest& request) const override {
    std::vector<Batch> batches = source_->step(request);
    for (Batch& batch : batches) {
      const int64_t first = (request.iteration * batch_ + batch.first) * length();
      batch.extra[kRoutedExperts] = experts_.slice(0, first, first + static_cast<int64_t>(batch.ids.size()));
    }
    return batches;
  }

 private:
  std::shared_ptr<const BatchSource> source_;
  Tensor experts_;
  int64_t batch_;
};

}  // namespace

Tensor read_routing(std::string_view what, const std::string& source, int64_t tokens,
                    const ModelConfig& model) {
  const auto [path, key] = file_and_key(source);
  if (key.empty()) throw ConfigError(fmt::format("{} {}: write FILE.safetensors:KEY", what, source));
  const std::string name = fmt::format("{} {}", what, source);
  const SafetensorsFile file(path);
  const Tensor given = file.tensor(key);
  const int64_t dims = given.rank();
  if (dims < 3 || given.numel() != tokens * given.size(dims - 2) * given.size(dims - 1))
    throw ConfigError(fmt::format("{}: the tensor is {}, not [{} tokens, layers with experts, k]", name,
                                  given.shape(), tokens));
  auto experts = std::make_shared<std::vector<int64_t>>();
  for (int64_t i = 0; i < given.numel(); ++i) experts->push_back(integer_at(name, given, i));
  const Tensor all = Tensor::wrap(experts->data(), {tokens, given.size(dims - 2), given.size(dims - 1)},
                                  DType::I64, kCpu, experts);
  check_routed_experts(all, tokens, model);
  return all;
}

std::shared_ptr<const BatchSource> with_routing(std::shared_ptr<const BatchSource> source,
                                                const Tensor& experts, int64_t batch) {
  return std::make_shared<const RoutedSource>(std::move(source), experts, batch);
}

}  // namespace megatron
