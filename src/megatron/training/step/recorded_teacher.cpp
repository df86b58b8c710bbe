#include "megatron/training/step/recorded_teacher.h"

#include <cstring>

namespace megatron {

void upload_recording(RankContext& ctx, const Batch& batch, std::span<const int64_t> held, DType wide,
                      const Stream& copies, MicroBatch& micro) {
  const auto tokens = batch.extra.find(kRecordedTokens);
  if (tokens == batch.extra.end()) return;
  const auto sent = [&](const Tensor& all, DType dtype) {
    require(all.dtype() == dtype && all.rank() == 2 && all.size(0) == std::ssize(batch.ids),
            "micro-batch: recorded predictions are {}, not {} of {} tokens", all, dtype, batch.ids.size());
    if (held.empty()) return sent_to_device(ctx, all.raw(), all.shape(), dtype, copies);
    const size_t row = all.bytes() / static_cast<size_t>(all.size(0));
    std::vector<std::byte> own(held.size() * row);
    for (size_t i = 0; i < held.size(); ++i)
      std::memcpy(own.data() + i * row,
                  static_cast<const std::byte*>(all.raw()) + static_cast<size_t>(held[i]) * row, row);
    return sent_to_device(ctx, own.data(), {std::ssize(held), all.size(1)}, dtype, copies);
  };
  micro.recorded_tokens = sent(tokens->second, DType::I64);
  micro.recorded_log_probs = sent(batch.extra.at(kRecordedLogProbs), wide);
}

}  // namespace megatron
