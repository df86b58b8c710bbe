#include "megatron/models/elastic/elastic_masks.h"

#include <cmath>

#include "megatron/ops/matmul.h"
#include "megatron/ops/shape.h"

namespace megatron {

ElasticMasks::ElasticMasks(std::shared_ptr<const ElasticSpec> spec, const ModelConfig& config,
                           const ModelParallel& parallel)
    : spec_(std::move(spec)) {
  const ProcessGroup& expert_group = parallel.expert.tensor;
  for (size_t axis = 0; axis < kElasticAxes; ++axis) {
    const std::vector<int64_t>& widths = spec_->widths[axis];
    if (!spec_->varies(axis)) continue;
    const int64_t full = widths.front();
    for (const int64_t width : widths) {
      std::vector<double>& masks = axes_[axis].masks;
      axes_[axis].factors.push_back(std::sqrt(static_cast<double>(width) / static_cast<double>(full)));
      if (axis == kHeads) {  // the first heads of each group, so that no rank holds more of them than another
        const int64_t groups = config.mamba_num_groups;
        for (int64_t group = 0; group < groups / parallel.tensor.size(); ++group)
          for (int64_t head = 0; head < full / groups; ++head)
            masks.insert(masks.end(), static_cast<size_t>(config.mamba_head_dim),
                         head < width / groups ? 1.0 : 0.0);
        continue;
      }
      const int64_t columns = axis == kFfn ? full / expert_group.size() : full,
                    first = axis == kFfn ? columns * expert_group.rank() : 0;
      for (int64_t i = first; i < first + columns; ++i) masks.push_back(i < width ? 1.0 : 0.0);
    }
  }
}

// Multiplies the axis's probabilities by `values`, a row for each of its choices. `kept` caches these on the
// device.
Tensor ElasticMasks::product(RankContext& ctx, const Tensor& choice, size_t axis,
                             const std::vector<double>& values, Tensor& kept) const {
  const int64_t count = std::ssize(spec_->widths[axis]), first = spec_->first_choice(axis);
  if (!kept) {
    const Tensor wide = ctx.from_vector(values, {count, std::ssize(values) / count});
    kept = ctx.empty(wide.shape(), choice.dtype(), MemoryTag::Parameter);
    ctx.kernels->copy(ctx.kernel_context(), {wide, kept});
  }
  const Tensor own = ops::contiguous(ctx, ops::slice(ctx, choice, 1, first, first + count));
  return ops::matmul(ctx, own, kept);
}

ElasticWidths::Normed ElasticMasks::normed(RankContext& ctx, const Tensor& choice, size_t axis,
                                           const Tensor& mask) {
  const Tensor factor = product(ctx, choice, axis, axes_[axis].factors, axes_[axis].device_factors);
  return {ops::div(ctx, mask, factor), factor};
}

std::shared_ptr<const ElasticWidths> ElasticMasks::make(RankContext& ctx, const Tensor& choice) {
  auto widths = std::make_shared<ElasticWidths>();
  const auto mask = [&](size_t axis) {
    return spec_->varies(axis) ? product(ctx, choice, axis, axes_[axis].masks, axes_[axis].device_masks)
                               : Tensor{};
  };
  if ((widths->hidden = mask(kStream))) widths->stream = normed(ctx, choice, kStream, widths->hidden);
  widths->ffn = mask(kFfn);
  if (const Tensor heads = mask(kHeads)) widths->heads = normed(ctx, choice, kHeads, heads);
  widths->experts = mask(kExperts);
  widths->choice = choice;
  widths->make = [this](RankContext& c, const Tensor& same) { return make(c, same); };
  return widths;
}

}  // namespace megatron
