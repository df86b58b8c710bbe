#include "megatron/datasets/text/preprocess_output.h"

#include <filesystem>
#include <numeric>

#include "megatron/base/error.h"

namespace megatron {

PreprocessOutput::PreprocessOutput(const PreprocessOptions& options)
    : type_(options.type),
      // In sequence the partitions together are the input's own order.
      parts_(options.keep_sequential ? 1 : static_cast<size_t>(std::max(1, options.partitions))) {
  for (const std::string& key : options.keys) {
    prefixes_.push_back(preprocess_output(options, key));
    writers_.emplace_back();
    for (size_t part = 0; part < parts_; ++part) {
      const std::string prefix = parts_ == 1 ? prefixes_.back() : part_prefix(prefixes_.size() - 1, part);
      writers_.back().push_back(std::make_unique<IndexedWriter>(prefix, type_));
    }
  }
}

PreprocessOutput::~PreprocessOutput() {
  if (parts_ > 1) remove_parts();
}

std::string PreprocessOutput::part_prefix(size_t key, size_t part) const {
  return fmt::format("{}.part{}", prefixes_[key], part);
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
  documents_ += block.documents;
}

void PreprocessOutput::deal_out(size_t key, const EncodedDocuments& documents) {
  std::span<const std::byte> bytes = documents.bytes;
  std::span<const int32_t> lengths = documents.lengths;
  for (size_t d = 0; d < documents.sequences.size(); ++d) {
    const std::span<const int32_t> own = lengths.first(static_cast<size_t>(documents.sequences[d]));
    const auto tokens = static_cast<size_t>(std::accumulate(own.begin(), own.end(), int64_t{0}));
    const size_t part = (static_cast<size_t>(documents_) + d) % parts_;
    writers_[key][part]->add_documents(bytes.first(tokens * size_of(type_)), own,
                                       std::span(documents.sequences).subspan(d, 1));
    bytes = bytes.subspan(tokens * size_of(type_));
    lengths = lengths.subspan(own.size());
  }
}

void PreprocessOutput::commit() {
  for (auto& writers : writers_)
    for (auto& writer : writers) writer->commit();
  if (parts_ == 1) return;
  for (size_t k = 0; k < prefixes_.size(); ++k) {
    std::vector<std::string> parts;
    for (size_t part = 0; part < parts_; ++part) parts.push_back(part_prefix(k, part));
    merge_datasets(parts, prefixes_[k]);
  }
}

void PreprocessOutput::remove_parts() const {
  std::error_code ignored;
  for (size_t k = 0; k < prefixes_.size(); ++k) {
    for (size_t part = 0; part < parts_; ++part) {
      std::filesystem::remove(part_prefix(k, part) + ".bin", ignored);
      std::filesystem::remove(part_prefix(k, part) + ".idx", ignored);
    }
  }
}

}  // namespace megatron
