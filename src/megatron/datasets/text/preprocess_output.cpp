#include "megatron/datasets/text/preprocess_output.h"

#include <filesystem>
#include <numeric>

#include "megatron/base/atomic_file.h"
#include "megatron/base/error.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;

// A file as far as a change of it shows.
Json describe_file(const std::string& path) {
  std::error_code size_error, time_error;
  const auto size = fs::file_size(path, size_error);
  const auto time = fs::last_write_time(path, time_error).time_since_epoch().count();
  return Json::Array{path, size_error ? int64_t{-1} : static_cast<int64_t>(size),
                     time_error ? int64_t{-1} : static_cast<int64_t>(time)};
}

// All that decides which tokens are written where. Whether bad lines are skipped does not: what was written
// without had none.
Json describe_work(const PreprocessOptions& options, size_t parts) {
  Json inputs = Json::array(), keys = Json::array();
  for (const std::string& path : options.inputs) inputs.push_back(describe_file(path));
  for (const std::string& key : options.keys) keys.push_back(key);
  Json work = Json::object();
  work["inputs"] = std::move(inputs);
  work["format"] = static_cast<int64_t>(options.format);
  work["keys"] = std::move(keys);
  work["encoder"] = options.encoder;
  work["append_eod"] = options.append_eod ? Json(int64_t{*options.append_eod}) : Json();
  work["split_sentences"] = options.split_sentences;
  work["keep_newlines"] = options.keep_newlines;
  work["type"] = name_of(options.type);
  work["partitions"] = static_cast<int64_t>(parts);
  work["block_bytes"] = static_cast<int64_t>(options.block_bytes);
  return work;
}

}  // namespace

PreprocessOutput::PreprocessOutput(const PreprocessOptions& options)
    : type_(options.type),
      // In sequence the partitions together are the input's own order.
      parts_(options.keep_sequential ? 1 : static_cast<size_t>(std::max(1, options.partitions))),
      segment_bytes_(options.segment_bytes),
      folder_(options.output_prefix + ".segments"),
      work_(describe_work(options, parts_)) {
  for (const std::string& key : options.keys) prefixes_.push_back(preprocess_output(options, key));
  try {
    const Json saved = Json::read(folder_ + "/state.json");
    if (saved.at("work") == work_ && has_segments(saved.at("segments").as_int())) {
      segments_ = saved.at("segments").as_int();
      state_ = {.blocks = saved.at("blocks").as_int(),
                .documents = saved.at("documents").as_int(),
                .tokens = saved.at("tokens").as_int(),
                .bad_lines = saved.at("bad_lines").as_int(),
                .input_bytes = saved.at("input_bytes").as_int()};
    }
  } catch (const Error&) {
    // Nothing to go on from.
  }
  if (segments_ == 0) fs::remove_all(folder_);
  fs::create_directories(folder_);
  segment_begin_ = state_.input_bytes;
  open_segment();
}

PreprocessOutput::~PreprocessOutput() {
  writers_.clear();  // the open segment goes
  std::error_code ignored;
  if (segments_ == 0) fs::remove_all(folder_, ignored);
}

std::string PreprocessOutput::file(size_t key, size_t part, int64_t segment) const {
  return fmt::format("{}/key{}.part{}.{}", folder_, key, part, segment);
}

// Whether all files of so many segments are there: a run that was stopped while it moved them has lost some.
bool PreprocessOutput::has_segments(int64_t count) const {
  for (size_t key = 0; key < prefixes_.size(); ++key)
    for (size_t part = 0; part < parts_; ++part)
      for (int64_t segment = 0; segment < count; ++segment)
        for (const char* end : {".bin", ".idx"})
          if (!fs::exists(file(key, part, segment) + end)) return false;
  return true;
}

void PreprocessOutput::open_segment() {
  writers_.clear();
  for (size_t key = 0; key < prefixes_.size(); ++key) {
    writers_.emplace_back();
    for (size_t part = 0; part < parts_; ++part)
      writers_.back().push_back(std::make_unique<IndexedWriter>(file(key, part, segments_), type_));
  }
}

void PreprocessOutput::end_segment() {
  for (auto& writers : writers_)
    for (auto& writer : writers) writer->commit();
  writers_.clear();
  ++segments_;
  segment_begin_ = state_.input_bytes;
  Json saved = Json::object();
  saved["work"] = work_;
  saved["segments"] = segments_;
  saved["blocks"] = state_.blocks;
  saved["documents"] = state_.documents;
  saved["tokens"] = state_.tokens;
  saved["bad_lines"] = state_.bad_lines;
  saved["input_bytes"] = state_.input_bytes;
  write_file_atomically(folder_ + "/state.json", saved.dump());
}

void PreprocessOutput::add(const EncodedBlock& block) {
  for (size_t k = 0; k < writers_.size(); ++k) {
    const EncodedDocuments& documents = block.keys[k];
    if (parts_ == 1) {
      writers_[k][0]->add_documents(documents.bytes, documents.lengths, documents.sequences);
    } else {
      deal_out(k, documents);
    }
  }
  ++state_.blocks;
  state_.documents += block.documents;
  state_.tokens += block.tokens;
  state_.bad_lines += block.bad_lines;
  state_.input_bytes += block.input_bytes;
  if (state_.input_bytes - segment_begin_ < segment_bytes_) return;
  end_segment();
  open_segment();
}

void PreprocessOutput::deal_out(size_t key, const EncodedDocuments& documents) {
  std::span<const std::byte> bytes = documents.bytes;
  std::span<const int32_t> lengths = documents.lengths;
  for (size_t d = 0; d < documents.sequences.size(); ++d) {
    const std::span<const int32_t> own = lengths.first(static_cast<size_t>(documents.sequences[d]));
    const auto tokens = static_cast<size_t>(std::accumulate(own.begin(), own.end(), int64_t{0}));
    const size_t part = (static_cast<size_t>(state_.documents) + d) % parts_;
    writers_[key][part]->add_documents(bytes.first(tokens * size_of(type_)), own,
                                       std::span(documents.sequences).subspan(d, 1));
    bytes = bytes.subspan(tokens * size_of(type_));
    lengths = lengths.subspan(own.size());
  }
}

void PreprocessOutput::commit() {
  end_segment();
  for (size_t k = 0; k < prefixes_.size(); ++k) {
    std::vector<std::string> files;
    for (size_t part = 0; part < parts_; ++part)
      for (int64_t segment = 0; segment < segments_; ++segment) files.push_back(file(k, part, segment));
    if (files.size() > 1) {
      merge_datasets(files, prefixes_[k]);
    } else {
      for (const char* end : {".bin", ".idx"}) fs::rename(files[0] + end, prefixes_[k] + end);
      sync_directory(fs::path(prefixes_[k]).parent_path().string());
    }
  }
  fs::remove_all(folder_);
}

}  // namespace megatron
