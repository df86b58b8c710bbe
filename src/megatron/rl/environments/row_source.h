#pragma once

#include <memory>
#include <string>

#include "megatron/base/json.h"

namespace megatron::rl {

// Rows of a file of tasks. Threads may share one.
class RowSource {
 public:
  virtual ~RowSource() = default;
  virtual int64_t size() const = 0;
  virtual Json row(int64_t i) const = 0;
  virtual std::string origin(int64_t i) const = 0;  // of a row, for messages
};

// JSON lines, or a Parquet file by its name: of that, the columns of texts and integers. An Error where it
// cannot be read.
std::shared_ptr<const RowSource> open_row_source(const std::string& path);

}  // namespace megatron::rl
