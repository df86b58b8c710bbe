#pragma once

#include <span>
#include <string>
#include <variant>
#include <vector>

#include "megatron/base/atomic_file.h"
#include "megatron/datasets/parquet/parquet_format.h"

namespace megatron {

enum class ParquetKind { text, int32_list, int64_list };

struct ParquetField {
  std::string name;
  ParquetKind kind = ParquetKind::text;
};

// Writes columns of strings and of integer lists as a Parquet file, plain pages, one row group a call. The
// path changes only with commit().
class ParquetWriter {
 public:
  using Texts = std::vector<std::string>;
  using Lists = std::vector<std::vector<int64_t>>;

  ParquetWriter(const std::string& path, std::vector<ParquetField> fields,
                ParquetCodec codec = ParquetCodec::snappy);

  // The values of each field, all of one length. An Error names an integer that its column cannot hold.
  void write_rows(std::span<const std::variant<Texts, Lists>> columns);
  void commit();

 private:
  struct Chunk {
    int64_t begin = 0, bytes = 0, unpacked = 0, values = 0;
  };
  struct Group {
    int64_t rows = 0;
    std::vector<Chunk> chunks;
  };
  struct Page;
  void write(std::string_view text);
  void write_page(const Page& page, Chunk& chunk);
  Chunk write_column(const ParquetField& field, const std::variant<Texts, Lists>& values);
  std::string footer() const;

  AtomicFile file_;
  std::vector<ParquetField> fields_;
  ParquetCodec codec_;
  std::vector<Group> groups_;
  int64_t position_ = 0;
};

}  // namespace megatron
