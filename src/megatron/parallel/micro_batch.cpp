#include "megatron/parallel/micro_batch.h"

#include <algorithm>

namespace megatron {
namespace {

// What a rank holds of the tokens of a micro-batch.
struct Held {
  RankContext& ctx;
  const Stream& copies;
  std::vector<int64_t> tokens;
  Shape shape;

  Tensor ids(const std::vector<int64_t>& all) const {
    std::vector<int64_t> own;
    own.reserve(tokens.size());
    for (int64_t token : tokens) own.push_back(std::max<int64_t>(0, all[static_cast<size_t>(token)]));
    return sent(own);
  }
  Tensor labels(const std::vector<int64_t>& all) const {
    std::vector<int64_t> own;
    own.reserve(tokens.size());
    for (int64_t token : tokens) {
      const int64_t label = all[static_cast<size_t>(token)];
      own.push_back(label < 0 ? kIgnoredLabel : label);
    }
    return sent(own);
  }
  Tensor weights(const std::vector<float>& all, double factor, DType dtype) const {
    if (all.empty()) return ctx.full({1}, dtype, factor).expand(shape);
    return dtype == DType::F64 ? scaled<double>(all, factor) : scaled<float>(all, factor);
  }
  // [kinds, tokens].
  Tensor values(const std::vector<std::vector<double>>& all, DType dtype) const {
    if (all.empty()) return {};
    return dtype == DType::F64 ? rows<double>(all) : rows<float>(all);
  }

 private:
  template <class T>
  Tensor sent(const std::vector<T>& values) const {
    return sent_to_device(ctx, values.data(), shape, dtype_of<T>(), copies);
  }
  template <class T>
  Tensor rows(const std::vector<std::vector<double>>& all) const {
    std::vector<T> own;
    own.reserve(all.size() * tokens.size());
    for (const std::vector<double>& kind : all)
      for (int64_t token : tokens) own.push_back(static_cast<T>(kind[static_cast<size_t>(token)]));
    return sent_to_device(ctx, own.data(), {std::ssize(all), shape[0]}, dtype_of<T>(), copies);
  }
  template <class T>
  Tensor scaled(const std::vector<float>& all, double factor) const {
    std::vector<T> own;
    own.reserve(tokens.size());
    for (int64_t token : tokens) own.push_back(static_cast<T>(factor * all[static_cast<size_t>(token)]));
    return sent(own);
  }
};

// An int64 tensor of the batch.
Tensor extra_on_device(RankContext& ctx, const Batch& batch, const std::string& name, const Stream& copies) {
  const auto found = batch.extra.find(name);
  require(found != batch.extra.end(), "micro-batch: it has no {}, which the model reads", name);
  const Tensor& host = found->second;
  return sent_to_device(ctx, host.data<int64_t>(), host.shape(), DType::I64, copies);
}

// Moves ids and labels `depth` tokens forward within their sequences. Beyond the end of one ids are 0 and
// labels ignored.
Batch shifted(const Batch& batch, int64_t depth) {
  Batch result;
  result.rows = batch.rows;
  int64_t end = 0;
  for (int64_t length : rows_of(batch).sequences()) {
    end += length;
    for (int64_t token = end - length; token < end; ++token) {
      const bool inside = token + depth < end;
      const auto from = static_cast<size_t>(token + depth);
      result.ids.push_back(inside ? batch.ids[from] : 0);
      result.labels.push_back(inside ? batch.labels[from] : kIgnoredLabel);
      if (!batch.weights.empty()) result.weights.push_back(inside ? batch.weights[from] : 0);
    }
  }
  return result;
}

}  // namespace

TokenRows rows_of(const Batch& batch) {
  return {.rows = batch.rows,
          .length = batch.length(),
          .documents = batch.lengths,
          .first = 0,
          .positions = batch.positions};
}

Tensor sent_to_device(RankContext& ctx, const void* data, const Shape& shape, DType dtype,
                      const Stream& copies) {
  Tensor result = ctx.empty(shape, dtype);
  if (result.numel()) ctx.runtime->copy_from_host(result.raw(), data, result.bytes(), copies.native());
  return result;
}

MicroBatch to_device(RankContext& ctx, const Batch& batch, const ContextParallel& context,
                     const StageNeeds& needs, const LossFactors& factors, DType dtype, const Stream& copies) {
  if (!needs.ids && !needs.labels && needs.mtp_layers == 0 && needs.extra.empty()) return {};
  std::vector<int64_t> tokens = held_tokens(rows_of(batch), context);
  const Shape shape{static_cast<int64_t>(tokens.size())};
  const Held held{ctx, copies, std::move(tokens), shape};
  MicroBatch result;
  if (needs.ids) result.ids = held.ids(batch.ids);
  if (needs.labels) {
    result.labels = held.labels(batch.labels);
    result.weights = held.weights(batch.weights, factors.label, dtype);
    result.values = held.values(batch.values, dtype);
  }
  const double main = factors.label * batch.label_weight();  // of this micro-batch's mean loss
  for (const std::string& name : needs.extra) result.extra[name] = extra_on_device(ctx, batch, name, copies);
  if (!needs.extra.empty() && needs.labels) {
    result.mean_weight = ctx.full({1}, DType::F64, main);
    result.share = ctx.full({1}, DType::F64, 1 / factors.batches);
  }
  for (int64_t depth = 1; depth <= needs.mtp_layers; ++depth) {
    const Batch next = shifted(batch, depth);
    const double weight = next.label_weight(), count = weight > 0 ? weight : 1;
    MtpTokens& mtp = result.mtp.emplace_back();
    mtp.ids = held.ids(next.ids);
    mtp.labels = held.labels(next.labels);
    if (!next.weights.empty()) mtp.weights = held.weights(next.weights, 1, dtype);
    mtp.weight = ctx.full({1}, DType::F64, factors.mtp * main / count);
    mtp.share = ctx.full({1}, DType::F64, 1 / (count * factors.batches));
  }
  return result;
}

}  // namespace megatron
