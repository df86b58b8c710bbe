#include "megatron/datasets/sft/sft_rows.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <numeric>

#include "megatron/base/error.h"
#include "megatron/datasets/parquet/parquet_reader.h"
#include "megatron/datasets/random/numpy_random.h"
#include "megatron/datasets/sft/first_fit.h"

namespace megatron {
namespace {

Json describe_sft(std::string_view kind, const std::string& path, IndexRange range) {
  Json json = Json::object();
  json["class"] = kind;
  json["dataset_path"] = path;
  json["rows"] = Json::Array{range.begin, range.end};
  return json;
}

void require_rows(const std::string& path, int64_t rows) {
  if (rows == 0)
    throw ConfigError(fmt::format(
        "{}: --split leaves one of its parts, of which samples are asked, without rows; give it a "
        "larger share, as in --split 90,10,0, or --eval-iters 0 with --split 1,0,0",
        path));
}

// Runs visit(i) for i in [0, count) on some threads. The first fault ends it.
template <class Visit>
void for_each_index(int64_t count, int threads, Visit visit) {
  std::atomic<int64_t> next{0};
  std::vector<std::future<void>> workers;
  for (int t = 0; t < std::max(1, threads); ++t)
    workers.push_back(std::async(std::launch::async, [&] {
      for (int64_t i = next++; i < count; i = next++) visit(i);
    }));
  std::exception_ptr fault;
  for (std::future<void>& worker : workers) {
    try {
      worker.get();
    } catch (...) {
      next = count;
      if (!fault) fault = std::current_exception();
    }
  }
  if (fault) std::rethrow_exception(fault);
}

// A padded token is never learned, so the label of one is none.
void forget_labels(GptSample& sample) {
  for (size_t i = 0; i < sample.labels.size(); ++i)
    if (sample.loss_mask[i] == 0) sample.labels[i] = kIgnoredLabel;
}

}  // namespace

SftRows::SftRows(const std::string& path, SftEncoder encode, std::array<double, 2> ends, int64_t max_rows,
                 std::optional<int64_t> num_samples)
    : file_(path), encode_(std::move(encode)), range_(split_range(ends, file_.size())) {
  if (max_rows > 0) range_.end = std::min(range_.end, range_.begin + max_rows);
  size_ = num_samples.value_or(range_.size());
  if (size_ > 0) require_rows(path, range_.size());
  description_ = describe_sft("SftRows", path, range_);
}

SftTokens SftRows::row(int64_t row) const {
  require(row >= 0 && row < rows(), "{}: row {} of {}", file_.path(), row, rows());
  const int64_t line = range_.begin + row;
  SftTokens tokens = encode_(file_.row(line), file_.origin(line));
  tokens.ids.resize(std::max<size_t>(2, tokens.ids.size()), 0);
  tokens.learned.resize(tokens.ids.size(), 0);
  return tokens;
}

PackedSftRows::PackedSftRows(SftRows rows, const PackingOptions& options, std::optional<int64_t> num_samples)
    : rows_(std::move(rows)), options_(options) {
  const auto count = static_cast<size_t>(rows_->rows());
  std::vector<int64_t> order(count), lengths(count), shuffled(count);
  for_each_index(rows_->rows(), options.threads, [&](int64_t i) {
    SftTokens tokens = rows_->row(i);
    pad_to_multiple(tokens, options_.multiple, options_.pad);
    lengths[static_cast<size_t>(i)] = packed_length(tokens);
  });
  std::iota(order.begin(), order.end(), int64_t{0});
  RandomState(options.seed).shuffle(std::span(order));
  for (size_t i = 0; i < count; ++i) shuffled[i] = lengths[static_cast<size_t>(order[i])];
  bins_ = first_fit(shuffled, options.length);
  for (auto& bin : bins_)
    for (int64_t& row : bin) row = order[static_cast<size_t>(row)];
  metadata_ = packing_metadata(bins_, lengths, options.length);
  size_ = num_samples.value_or(bins());
  description_ = rows_->description();
  if (size_ > 0) require_rows(description_.at("dataset_path").as_string(), bins());
}

PackedSftRows::PackedSftRows(const std::string& parquet, const PackingOptions& options,
                             std::array<double, 2> ends, std::optional<int64_t> num_samples)
    : options_(options) {
  const ParquetFile file(parquet);
  for (int64_t group = 0; group < file.row_groups(); ++group) {
    auto ids = file.integer_lists(group, "input_ids"), mask = file.integer_lists(group, "loss_mask"),
         starts = file.integer_lists(group, "seq_start_id");
    for (size_t i = 0; i < ids.size(); ++i)
      packed_.push_back({.input_ids = std::move(ids[i]),
                         .seq_start_id = std::move(starts[i]),
                         .loss_mask = {mask[i].begin(), mask[i].end()}});
  }
  const IndexRange range = split_range(ends, static_cast<int64_t>(packed_.size()));
  packed_ = {packed_.begin() + range.begin, packed_.begin() + range.end};
  size_ = num_samples.value_or(bins());
  if (size_ > 0) require_rows(parquet, bins());
  description_ = describe_sft("PackedSftRows", parquet, range);
}

PackedRow PackedSftRows::packed_row(int64_t bin) const {
  if (!rows_) return packed_.at(static_cast<size_t>(bin));
  std::vector<SftTokens> sequences;
  for (int64_t index : bins_.at(static_cast<size_t>(bin))) {
    sequences.push_back(rows_->row(index));
    pad_to_multiple(sequences.back(), options_.multiple, options_.pad);
  }
  std::vector<const SftTokens*> pointers;
  for (const SftTokens& sequence : sequences) pointers.push_back(&sequence);
  return pack_row(pointers);
}

GptSample PackedSftRows::sample(int64_t i) const {
  PackedSample packed = collate_packed(packed_row(i % bins()), options_.length, options_.pad);
  GptSample sample{.tokens = std::move(packed.tokens), .labels = std::move(packed.labels)};
  sample.loss_mask = std::move(packed.loss_mask);
  sample.position_ids = std::move(packed.positions);
  sample.cu_seqlens = std::move(packed.cu_seqlens);
  sample.max_seqlen = packed.max_seqlen;
  forget_labels(sample);
  return sample;
}

GptSample unpacked_sample(const SftTokens& tokens, int64_t length, int64_t pad) {
  SftSample row = make_sft_sample(tokens, length, pad);
  GptSample sample{.tokens = std::move(row.tokens), .labels = std::move(row.labels)};
  sample.loss_mask = std::move(row.loss_mask);
  sample.position_ids = std::move(row.positions);
  forget_labels(sample);
  return sample;
}

}  // namespace megatron
