#include "megatron/parallel/tensor/vocabulary_rows.h"

#include "megatron/ops/check.h"

namespace megatron {
namespace {

constexpr int64_t kElsewhere = 1;  // 0 is for ignored ids

}  // namespace

VocabularyRows::VocabularyRows(const TensorParallel& tp, int64_t vocabulary)
    : rank_(tp.rank()), vocabulary_(vocabulary) {
  if (!tp.unequal()) return;
  const int64_t extent = tp.vocabulary_unit(vocabulary), count = (vocabulary + extent - 1) / extent;
  const UnitMap map = tp.units("vocabulary", count);
  if (map.contiguous()) {
    begin_ = map.owned().front() * extent;
    return;
  }
  const auto rows_of = [&](int64_t unit) {
    return std::min(vocabulary, (unit + 1) * extent) - unit * extent;
  };
  int64_t own = 0;
  for (int64_t unit : map.owned()) own += rows_of(unit);
  begin_ = vocabulary - own;  // so that padding comes behind the last id
  require(begin_ > kElsewhere, "vocabulary: rank {} holds {} of {} rows in several runs", rank_, own,
          vocabulary);
  table_.assign(static_cast<size_t>(vocabulary), kElsewhere);
  int64_t next = begin_;
  for (int64_t unit : map.owned())
    for (int64_t i = 0; i < rows_of(unit); ++i) table_[static_cast<size_t>(unit * extent + i)] = next++;
}

Tensor VocabularyRows::renamed(RankContext& ctx, const Tensor& ids) {
  if (table_.empty()) return ids;
  if (!on_device_) on_device_ = ctx.from_vector(table_, {vocabulary_, 1});
  Tensor names = ctx.empty(ids.shape(), DType::I64);
  ctx.kernels->gather_rows(ctx.kernel_context(), {on_device_, ids, names, 0});
  return names;
}

}  // namespace megatron
