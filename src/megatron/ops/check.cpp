#include "megatron/ops/check.h"

namespace megatron::ops {

void check_range(const RankContext& ctx, const char* op, const char* what, const Tensor& ids, int64_t size,
                 const char* whole, std::optional<int64_t> except) {
  if (ctx.device != kCpu) return;
  const int64_t* id = ids.data<int64_t>();
  int64_t exempt = except.value_or(0);
  bool outside = false;
  for (int64_t i = 0; i < ids.numel(); ++i)
    outside |= static_cast<uint64_t>(id[i]) >= static_cast<uint64_t>(size) && !(except && id[i] == exempt);
  if (!outside) return;
  for (int64_t i = 0; i < ids.numel(); ++i)
    require((id[i] >= 0 && id[i] < size) || (except && id[i] == exempt),
            "{}: {} {} at place {} of {} is outside {} of {}: it must be in [0, {}){}", op, what, id[i], i,
            ids, whole, size, size, except ? fmt::format(", or {} to be left out", exempt) : "");
}

}  // namespace megatron::ops
