#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "megatron/base/mapped_file.h"
#include "megatron/datasets/parquet/parquet_format.h"

namespace megatron {

// One column at the end of a path of names.
struct ParquetColumn {
  std::string name;                    // of the top-level field
  int64_t type = 0;                    // ParquetType, or one that is not read
  int definition = 0, repetition = 0;  // largest levels
  int filled = 0;                      // definition level from which on a list has an element
};

struct ColumnPage;

// Columns of strings, integers and lists of integers of a Parquet file: plain and dictionary pages,
// uncompressed or compressed by Snappy, gzip or zstd. Other nesting and encodings are refused by name. A
// malformed file gives an Error that names it; memory stays within a bound that grows with the bytes of the
// column read.
class ParquetFile {
 public:
  explicit ParquetFile(const std::string& path);

  const std::string& path() const { return file_->path(); }
  int64_t bytes() const { return static_cast<int64_t>(file_->bytes().size()); }
  int64_t row_groups() const { return static_cast<int64_t>(groups_.size()); }
  int64_t rows() const;
  int64_t rows(int64_t group) const { return groups_[static_cast<size_t>(group)].rows; }
  const std::vector<ParquetColumn>& columns() const { return columns_; }

  // All values of a row group. Absent ones are null.
  std::vector<std::optional<std::string>> strings(int64_t group, const std::string& name) const;
  std::vector<std::optional<int64_t>> integers(int64_t group, const std::string& name) const;
  // A null list is empty.
  std::vector<std::vector<int64_t>> integer_lists(int64_t group, const std::string& name) const;

 private:
  struct Chunk {
    int64_t codec = 0, values = 0, begin = 0, bytes = 0;
  };
  struct Group {
    int64_t rows = 0;
    std::vector<Chunk> chunks;  // by column
  };
  size_t find(const std::string& name) const;
  enum class Kind { strings, integers, lists };
  // Takes one page and returns the rows that begin in it.
  using TakePage = std::function<int64_t(const ParquetColumn&, const ColumnPage&, const std::string& origin)>;
  void read(int64_t group, const std::string& name, Kind kind, const TakePage& take) const;

  std::shared_ptr<MappedFile> file_;
  std::vector<ParquetColumn> columns_;
  std::vector<Group> groups_;
};

}  // namespace megatron
