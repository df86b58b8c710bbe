#include "megatron/rl/environments/row_source.h"

#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <vector>

#include "megatron/datasets/parquet/parquet_reader.h"
#include "megatron/datasets/sft/conversation.h"

namespace megatron::rl {
namespace {

class JsonSource final : public RowSource {
 public:
  explicit JsonSource(const std::string& path) : rows_(path) {}
  int64_t size() const override { return rows_.size(); }
  Json row(int64_t i) const override { return rows_.row(i); }
  std::string origin(int64_t i) const override { return rows_.origin(i); }

 private:
  JsonRows rows_;
};

class ParquetSource final : public RowSource {
 public:
  explicit ParquetSource(const std::string& path) : path_(path) {
    const ParquetFile file(path);
    rows_.assign(static_cast<size_t>(file.rows()), Json::object());
    size_t begin = 0;
    for (int64_t group = 0; group < file.row_groups(); ++group) {
      for (const ParquetColumn& column : file.columns()) {
        if (column.repetition > 0 || column.definition > 1) continue;  // within a list or a structure
        if (column.type == static_cast<int64_t>(ParquetType::bytes))
          fill(begin, column.name, file.strings(group, column.name));
        else if (column.type == static_cast<int64_t>(ParquetType::int32) ||
                 column.type == static_cast<int64_t>(ParquetType::int64))
          fill(begin, column.name, file.integers(group, column.name));
      }
      begin += static_cast<size_t>(file.rows(group));
    }
  }
  int64_t size() const override { return static_cast<int64_t>(rows_.size()); }
  Json row(int64_t i) const override { return rows_.at(static_cast<size_t>(i)); }
  std::string origin(int64_t i) const override { return fmt::format("{} row {}", path_, i + 1); }

 private:
  // What is absent is no field.
  template <class T>
  void fill(size_t begin, const std::string& name, const std::vector<std::optional<T>>& values) {
    for (size_t i = 0; i < values.size(); ++i)
      if (values[i]) rows_.at(begin + i)[name] = *values[i];
  }

  std::string path_;
  std::vector<Json> rows_;
};

}  // namespace

std::shared_ptr<const RowSource> open_row_source(const std::string& path) {
  if (std::filesystem::path(path).extension() == ".parquet") return std::make_shared<ParquetSource>(path);
  return std::make_shared<JsonSource>(path);
}

}  // namespace megatron::rl
