#include "megatron/training/run/recorded_predictions.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <unordered_map>

#include "megatron/base/refuse.h"
#include "megatron/checkpoint/host_tensor.h"
#include "megatron/checkpoint/safetensors.h"
#include "megatron/parallel/context/sequences.h"
#include "megatron/parallel/micro_batch.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLoad = "--logits-load-dir";

std::string folder_of(const std::string& folder, int64_t iteration) {
  return fmt::format("{}/iteration_{:07}", folder, iteration + 1);
}

template <class T>
Tensor filled(const Shape& shape, DType dtype, std::span<const T> values) {
  Tensor tensor = host_tensor(shape, dtype);
  const auto put = [&]<class To>(To* out) {
    for (size_t i = 0; i < values.size(); ++i) {
      if constexpr (std::is_same_v<To, fp16> || std::is_same_v<To, bf16>)
        out[i] = To(static_cast<float>(values[i]));
      else
        out[i] = static_cast<To>(values[i]);
    }
  };
  switch (dtype) {
    case DType::F64:
      put(tensor.data<double>());
      break;
    case DType::F32:
      put(tensor.data<float>());
      break;
    case DType::F16:
      put(tensor.data<fp16>());
      break;
    case DType::BF16:
      put(tensor.data<bf16>());
      break;
    case DType::I32:
      put(tensor.data<int32_t>());
      break;
    case DType::I64:
      put(tensor.data<int64_t>());
      break;
    default:
      fail("recorded predictions: {} is not written", dtype);
  }
  return tensor;
}

double number_at(const Tensor& tensor, int64_t i) {
  switch (tensor.dtype()) {
    case DType::F64:
      return tensor.data<double>()[i];
    case DType::F32:
      return tensor.data<float>()[i];
    case DType::F16:
      return static_cast<float>(tensor.data<fp16>()[i]);
    case DType::BF16:
      return static_cast<float>(tensor.data<bf16>()[i]);
    default:
      refuse("{}: log-probabilities of {} are not read", kLoad, tensor.dtype());
  }
}

// All parts of a tensor-parallel group, one behind the other.
Tensor gathered(RankContext& ctx, const ProcessGroup& group, const Tensor& own) {
  if (group.size() == 1) return own;
  const Tensor all = ctx.empty({group.size(), own.size(0), own.size(1)}, own.dtype());
  group.all_gather(own, all).wait();
  return all;
}

}  // namespace

PredictionRecorder::PredictionRecorder(RankContext& ctx, const ProcessGroup& world,
                                       const ParallelContext& parallel, const Config& config)
    : ctx_(ctx),
      world_(world),
      parallel_(parallel),
      options_(config.distill),
      count_(std::min(options_.logits_save_top_k, config.model.vocab_size)) {}

double PredictionRecorder::evaluate(RankTrainer& trainer, std::span<const Batch> batches, int64_t iteration,
                                    int64_t all) {
  const std::string folder = folder_of(options_.logits_save_dir, iteration);
  if (world_.rank() == 0) {
    fs::remove_all(folder);
    fs::create_directories(folder);
  }
  world_.barrier();
  Rows rows;
  const ContextParallel& context = trainer.model().parallel().context;
  const RankTrainer::LogitObserver record = [&](Head& head, const Tensor& logits, const MicroBatch& micro) {
    for (const Batch& batch : batches)
      if (batch.first == micro.seq.batch_begin) add(rows, head, logits, batch, context);
  };
  const double loss = trainer.evaluate(ctx_, batches, all, record);
  if (rows.count() > 0) write(folder, rows);
  return loss;
}

// The likeliest of all ranks' tokens; of one rank of the tensor-parallel group alone.
void PredictionRecorder::add(Rows& rows, Head& head, const Tensor& logits, const Batch& batch,
                             const ContextParallel& context) {
  const ops::Likeliest own = head.likeliest(ctx_, logits, count_);
  const ProcessGroup& group = parallel_.group(Axis::tp);
  const Tensor all_tokens = gathered(ctx_, group, own.tokens), narrow = gathered(ctx_, group, own.log_probs);
  if (group.rank() != 0) return;
  const Tensor all_probs = ctx_.empty(narrow.shape(), DType::F64);
  ctx_.kernels->copy(ctx_.kernel_context(), {narrow, all_probs});
  const auto tokens = ctx_.to_vector<int64_t>(all_tokens);
  const auto probs = ctx_.to_vector<double>(all_probs);
  const std::vector<int64_t> held = held_tokens(rows_of(batch), context);
  const int64_t count = own.tokens.size(0), parts = group.size();
  std::vector<std::pair<double, int64_t>> row;
  for (int64_t i = 0; i < std::min(count, static_cast<int64_t>(held.size())); ++i) {
    row.clear();
    for (int64_t part = 0; part < parts; ++part)
      for (int64_t j = 0; j < count_; ++j) {
        const auto at = static_cast<size_t>((part * count + i) * count_ + j);
        if (tokens[at] >= 0) row.emplace_back(-probs[at], tokens[at]);
      }
    std::sort(row.begin(), row.end());
    row.resize(std::min(row.size(), static_cast<size_t>(count_)));
    if (options_.logits_save_top_p) {
      double sum = 0;
      int64_t kept = 0;
      while (kept < std::ssize(row) &&
             (kept < options_.logits_save_top_p_min_k || sum < *options_.logits_save_top_p))
        sum += std::exp(-row[static_cast<size_t>(kept++)].first);
      row.resize(static_cast<size_t>(kept));
    }
    const auto place = static_cast<size_t>(held[static_cast<size_t>(i)]);
    rows.places.push_back(batch.first * batch.length() + static_cast<int64_t>(place));
    rows.ids.push_back(batch.ids[place]);
    row.resize(static_cast<size_t>(count_), {0.0, -1});
    for (const auto& [minus, token] : row) {
      rows.tokens.push_back(token);
      rows.log_probs.push_back(-minus);
    }
  }
}

// As wide as the longest row.
void PredictionRecorder::write(const std::string& folder, const Rows& rows) const {
  const int64_t n = rows.count();
  int64_t most = 1;
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = most; j < count_; ++j)
      if (rows.tokens[static_cast<size_t>(i * count_ + j)] >= 0) most = j + 1;
  std::vector<int64_t> tokens;
  std::vector<double> log_probs;
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < most; ++j) {
      tokens.push_back(rows.tokens[static_cast<size_t>(i * count_ + j)]);
      log_probs.push_back(rows.log_probs[static_cast<size_t>(i * count_ + j)]);
    }
  const std::string path = fmt::format("{}/replica_{}_context_{}.safetensors", folder, parallel_.replica(),
                                       parallel_.rank(Axis::cp));
  write_safetensors(
      path,
      {{"places", filled<int64_t>({n}, DType::I64, rows.places)},
       {"ids", filled<int64_t>({n}, DType::I64, rows.ids)},
       {"tokens", filled<int64_t>({n, most}, DType::I32, tokens)},
       {"log_probs", filled<double>({n, most}, dtype_from_name(options_.logits_save_dtype), log_probs)}});
}

RecordedPredictions::RecordedPredictions(const Config& config, DType wide)
    : folder_(config.distill.logits_load_dir), wide_(wide) {}

std::vector<Batch> RecordedPredictions::added_to(std::span<const Batch> batches, int64_t iteration) const {
  const std::string folder = folder_of(folder_, iteration);
  require_input(fs::is_directory(folder),
                "{} {}: it has nothing of iteration {}; record as many iterations as are learned from "
                "(--logits-save-dir, --train-iters)",
                kLoad, folder_, iteration + 1);
  struct Part {
    Tensor ids, tokens, log_probs;
  };
  std::vector<Part> parts;
  std::unordered_map<int64_t, std::pair<size_t, int64_t>> at;  // by place: which part, and the row of it
  int64_t most = 1;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".safetensors") continue;
    const SafetensorsFile file(entry.path().string());
    const Tensor places = file.tensor("places");
    parts.push_back({file.tensor("ids"), file.tensor("tokens"), file.tensor("log_probs")});
    const Part& part = parts.back();
    require_input(part.ids.numel() == places.numel() && part.tokens.rank() == 2 &&
                      part.tokens.size(0) == places.numel() &&
                      part.log_probs.shape() == part.tokens.shape() && part.tokens.dtype() == DType::I32,
                  "{}: its tensors do not fit together; record it again", entry.path().string());
    most = std::max(most, part.tokens.size(1));
    for (int64_t row = 0; row < places.numel(); ++row)
      at[places.data<int64_t>()[row]] = {parts.size() - 1, row};
  }
  std::vector<Batch> result(batches.begin(), batches.end());
  for (Batch& batch : result) {
    const size_t count = batch.ids.size();
    std::vector<int64_t> tokens(count * static_cast<size_t>(most), -1);
    std::vector<double> log_probs(tokens.size(), 0);
    for (size_t i = 0; i < count; ++i) {
      const auto token = static_cast<int64_t>(i);
      const auto found = at.find(batch.first * batch.length() + token);
      const int64_t sample = batch.first + token / batch.length();
      require_input(found != at.end(),
                    "{} {}: nothing was recorded of sample {} of iteration {}; use the batch size of the run "
                    "that recorded it",
                    kLoad, folder_, sample, iteration + 1);
      const auto [index, row] = found->second;
      const Part& part = parts[index];
      require_input(
          part.ids.data<int64_t>()[row] == batch.ids[i],
          "{} {}: sample {} of iteration {} has other tokens than were recorded; use the data, "
          "--seed, --seq-length, --global-batch-size and number of samples of the run that recorded "
          "them",
          kLoad, folder_, sample, iteration + 1);
      const int64_t k = part.tokens.size(1);
      for (int64_t j = 0; j < k; ++j) {
        const size_t to = i * static_cast<size_t>(most) + static_cast<size_t>(j);
        tokens[to] = part.tokens.data<int32_t>()[row * k + j];
        log_probs[to] = number_at(part.log_probs, row * k + j);
      }
    }
    const Shape shape{static_cast<int64_t>(count), most};
    batch.extra[kRecordedTokens] = filled<int64_t>(shape, DType::I64, tokens);
    batch.extra[kRecordedLogProbs] = filled<double>(shape, wide_, log_probs);
  }
  return result;
}

}  // namespace megatron
