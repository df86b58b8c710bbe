#include "megatron/datasets/text/document_reader.h"

#include <algorithm>
#include <cstring>

#include "megatron/base/error.h"
#include "megatron/datasets/parquet/parquet_reader.h"
#include "megatron/datasets/text/byte_source.h"

namespace megatron {
namespace {

std::string without_compression(std::string name) {
  for (std::string_view ending : {".gz", ".zst", ".xz"})
    if (name.ends_with(ending)) return name.substr(0, name.size() - ending.size());
  return name;
}

// What a .json file holds: an array, or objects line by line.
TextFormat format_of_json(const std::string& path) {
  std::unique_ptr<ByteSource> source = open_bytes(path);
  for (char c; source->read({&c, 1}) == 1;) {
    if (c == '[') return TextFormat::json_array;
    if (c != ' ' && c != '\t' && c != '\n' && c != '\r') break;
  }
  return TextFormat::jsonl;
}

TextFormat format_of(const std::string& path) {
  const std::string name = without_compression(path);
  if (name.ends_with(".txt")) return TextFormat::text;
  if (name.ends_with(".parquet")) return TextFormat::parquet;
  return name.ends_with(".json") ? format_of_json(path) : TextFormat::jsonl;
}

// Whole lines of one file. A last line need not end with a line break.
class LineReader {
 public:
  LineReader(std::string path, TextFormat format, size_t block_bytes)
      : path_(std::move(path)), json_(format != TextFormat::text), block_bytes_(block_bytes) {
    source_ = open_bytes(path_);
    if (format == TextFormat::json_array) source_ = array_to_lines(std::move(source_), path_);
  }

  bool next(DocumentBlock& block) {
    block = {.file = path_, .first_line = line_, .json = json_};
    std::string& text = block.lines;
    text.swap(rest_);
    rest_.clear();
    while (!ended_) {
      const size_t before = text.size();
      text.resize(std::max(before + block_bytes_ / 4 + 1, block_bytes_));
      const size_t count = source_->read(std::span(text).subspan(before));
      text.resize(before + count);
      ended_ = count == 0;
      const size_t last = std::string_view(text).substr(before).rfind('\n');
      if (last != std::string::npos && text.size() >= block_bytes_) {
        rest_.assign(text, before + last + 1);
        text.resize(before + last + 1);
        break;
      }
    }
    block.input_bytes = source_->consumed() - consumed_;
    consumed_ = source_->consumed();
    for (size_t at = 0; (at = text.find('\n', at)) != std::string::npos; ++at) ++line_;
    return !text.empty();
  }

 private:
  std::string path_;
  bool json_;
  size_t block_bytes_;
  std::unique_ptr<ByteSource> source_;
  std::string rest_;
  int64_t line_ = 1, consumed_ = 0;
  bool ended_ = false;
};

// The row groups of one Parquet file.
class ColumnReader {
 public:
  ColumnReader(const std::string& path, std::vector<std::string> keys)
      : file_(path), keys_(std::move(keys)) {}

  bool next(DocumentBlock& block) {
    if (group_ == file_.row_groups()) return false;
    block = {.file = file_.path(), .first_line = row_ + 1, .json = false};
    for (const std::string& key : keys_) {
      std::vector<std::string>& values = block.values.emplace_back();
      for (std::optional<std::string>& value : file_.strings(group_, key)) {
        require(value.has_value(), "{}: row {} has no '{}'", file_.path(),
                row_ + static_cast<int64_t>(values.size()) + 1, key);
        values.push_back(std::move(*value));
      }
    }
    row_ += file_.rows(group_);
    ++group_;
    const int64_t bytes = file_.bytes() * group_ / file_.row_groups();
    block.input_bytes = bytes - consumed_;
    consumed_ = bytes;
    return true;
  }

 private:
  ParquetFile file_;
  std::vector<std::string> keys_;
  int64_t group_ = 0, row_ = 0, consumed_ = 0;
};

class FilesReader final : public DocumentReader {
 public:
  FilesReader(std::vector<std::string> files, TextFormat format, std::vector<std::string> keys,
              size_t block_bytes)
      : files_(std::move(files)), format_(format), keys_(std::move(keys)), block_bytes_(block_bytes) {}

  bool next(DocumentBlock& block) override {
    while (true) {
      if (lines_ && lines_->next(block)) return true;
      if (columns_ && columns_->next(block)) return true;
      lines_.reset();
      columns_.reset();
      if (at_ == files_.size()) return false;
      const std::string& path = files_[at_++];
      const TextFormat format = format_ == TextFormat::automatic ? format_of(path) : format_;
      if (format == TextFormat::parquet) {
        columns_ = std::make_unique<ColumnReader>(path, keys_);
      } else {
        lines_ = std::make_unique<LineReader>(path, format, block_bytes_);
      }
    }
  }

 private:
  std::vector<std::string> files_;
  TextFormat format_;
  std::vector<std::string> keys_;
  size_t block_bytes_, at_ = 0;
  std::unique_ptr<LineReader> lines_;
  std::unique_ptr<ColumnReader> columns_;
};

}  // namespace

std::unique_ptr<DocumentReader> open_documents(std::vector<std::string> files, TextFormat format,
                                               std::vector<std::string> keys, size_t block_bytes) {
  return std::make_unique<FilesReader>(std::move(files), format, std::move(keys),
                                       std::max<size_t>(block_bytes, 1));
}

}  // namespace megatron
