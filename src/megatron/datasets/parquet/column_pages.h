#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/datasets/parquet/parquet_reader.h"

namespace megatron {

// One page of values, decompressed and without its encoding.
struct ColumnPage {
  std::vector<int32_t> repetition, definition;  // a level for each entry; empty where the largest is 0
  int64_t entries = 0;
  std::vector<std::string_view> strings;  // of those that are not null
  std::vector<int64_t> integers;
};

struct ColumnBytes {
  std::string_view bytes;  // of the column chunk in the file
  int64_t codec = 0, values = 0;
};

// Reads the pages of a column chunk in turn; strings are valid during the call. An Error names `origin`.
void read_column(const ColumnBytes& chunk, const ParquetColumn& column, const std::string& origin,
                 const std::function<void(const ColumnPage&)>& take);

}  // namespace megatron
