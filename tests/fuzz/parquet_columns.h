#pragma once

#include "megatron/datasets/parquet/parquet_format.h"
#include "megatron/datasets/parquet/parquet_reader.h"

namespace megatron::testing {

inline void read_all_columns(const ParquetFile& file) {
  for (int64_t group = 0; group < file.row_groups(); ++group)
    for (const ParquetColumn& column : file.columns()) {
      if (column.repetition > 0) {
        file.integer_lists(group, column.name);
      } else if (column.type == static_cast<int64_t>(ParquetType::bytes)) {
        file.strings(group, column.name);
      } else {
        file.integers(group, column.name);
      }
    }
}

}  // namespace megatron::testing
