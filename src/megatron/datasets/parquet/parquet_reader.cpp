#include "megatron/datasets/parquet/parquet_reader.h"

#include <cstring>

#include "megatron/base/error.h"
#include "megatron/base/nearest.h"
#include "megatron/datasets/parquet/column_pages.h"
#include "megatron/datasets/parquet/thrift.h"

namespace megatron {
namespace {

// The leaves of a schema, which is stored as a tree in depth-first order.
class SchemaReader {
 public:
  SchemaReader(const std::vector<ThriftValue>& elements, const std::string& path)
      : elements_(elements), path_(path) {}

  std::vector<ParquetColumn> columns() {
    require(!elements_.empty(), "{}: has no schema", path_);
    const int64_t children = elements_[0].int_or(5, 0);
    at_ = 1;
    for (int64_t i = 0; i < children; ++i) read({}, 0);
    return std::move(columns_);
  }

 private:
  void read(ParquetColumn column, int depth) {
    require(at_ < elements_.size() && depth < 32, "{}: its schema is malformed", path_);
    const ThriftValue& element = elements_[at_++];
    if (depth == 0) column.name = element.at(4, path_).bytes;
    const auto repetition = static_cast<ParquetRepetition>(element.int_or(3, 0));
    if (repetition != ParquetRepetition::required) ++column.definition;
    if (repetition == ParquetRepetition::repeated) {
      ++column.repetition;
      column.filled = column.definition;
    }
    const int64_t children = element.int_or(5, 0);
    for (int64_t i = 0; i < children; ++i) read(column, depth + 1);
    if (children > 0) return;
    column.type = element.int_at(1, path_);
    columns_.push_back(std::move(column));
  }

  const std::vector<ThriftValue>& elements_;
  const std::string& path_;
  size_t at_ = 0;
  std::vector<ParquetColumn> columns_;
};

}  // namespace

ParquetFile::ParquetFile(const std::string& path) : file_(std::make_shared<MappedFile>(path)) {
  const std::string_view text(reinterpret_cast<const char*>(file_->bytes().data()), file_->bytes().size());
  require(text.size() >= 12 && text.starts_with(kParquetMagic) && text.ends_with(kParquetMagic),
          "{}: it is no Parquet file, or was cut", path);
  uint32_t length;
  std::memcpy(&length, text.data() + text.size() - 8, 4);
  require(length <= text.size() - 12, "{}: its footer of {} bytes leaves the file", path, length);
  std::string_view footer = text.substr(text.size() - 8 - length, length);
  const ThriftValue meta = parse_thrift(footer, path);
  columns_ = SchemaReader(meta.at(2, path).list, path).columns();
  for (const ThriftValue& stored : meta.at(4, path).list) {
    Group group{.rows = stored.int_at(3, path)};
    const std::vector<ThriftValue>& chunks = stored.at(1, path).list;
    require(group.rows >= 0 && chunks.size() == columns_.size(), "{}: a row group of {} columns, expected {}",
            path, chunks.size(), columns_.size());
    for (const ThriftValue& column : chunks) {
      const ThriftValue& facts = column.at(3, path);
      Chunk chunk{.codec = facts.int_at(4, path),
                  .values = facts.int_at(5, path),
                  .begin = facts.int_at(9, path),
                  .bytes = facts.int_at(7, path)};
      if (const int64_t dictionary = facts.int_or(11, 0); dictionary > 0 && dictionary < chunk.begin)
        chunk.begin = dictionary;
      const auto size = static_cast<int64_t>(text.size());
      require(
          chunk.begin >= 0 && chunk.bytes >= 0 && chunk.begin <= size && chunk.bytes <= size - chunk.begin,
          "{}: a column of {} bytes from {} leaves the file", path, chunk.bytes, chunk.begin);
      group.chunks.push_back(chunk);
    }
    groups_.push_back(std::move(group));
  }
}

int64_t ParquetFile::rows() const {
  int64_t total = 0;
  for (const Group& group : groups_) total += group.rows;
  return total;
}

size_t ParquetFile::find(const std::string& name) const {
  std::vector<std::string> names;
  for (size_t i = 0; i < columns_.size(); ++i) {
    if (columns_[i].name == name) return i;
    names.push_back(columns_[i].name);
  }
  fail("{}: has no column '{}'; {}", path(), name, did_you_mean(nearest(name, names)));
}

void ParquetFile::read(int64_t group, const std::string& name, Kind kind, const TakePage& take) const {
  const size_t index = find(name);
  const ParquetColumn& column = columns_[index];
  const std::string origin = fmt::format("{} row group {} column '{}'", path(), group, name);
  require(group >= 0 && group < row_groups(), "{}: there are {} row groups", origin, row_groups());
  const bool text = column.type == static_cast<int64_t>(ParquetType::bytes);
  const bool whole = column.type == static_cast<int64_t>(ParquetType::int32) ||
                     column.type == static_cast<int64_t>(ParquetType::int64);
  require(kind != Kind::strings || (text && column.repetition == 0), "{}: is no column of strings", origin);
  require(kind != Kind::integers || (whole && column.repetition == 0), "{}: is no column of integers",
          origin);
  require(kind != Kind::lists || (whole && column.repetition == 1), "{}: is no column of integer lists",
          origin);
  const Chunk& chunk = groups_[static_cast<size_t>(group)].chunks[index];
  const std::string_view bytes(reinterpret_cast<const char*>(file_->bytes().data()) + chunk.begin,
                               static_cast<size_t>(chunk.bytes));
  int64_t rows = 0;
  read_column({bytes, chunk.codec, chunk.values}, column, origin,
              [&](const ColumnPage& page) { rows += take(column, page, origin); });
  require(rows == this->rows(group), "{}: {} values, expected {} rows", origin, rows, this->rows(group));
}

std::vector<std::optional<std::string>> ParquetFile::strings(int64_t group, const std::string& name) const {
  std::vector<std::optional<std::string>> values;
  // Dictionaries repeat long strings at little cost: what they may give is bounded by the file.
  int64_t left = (int64_t{1} << 26) + 256 * bytes();
  read(group, name, Kind::strings,
       [&](const ParquetColumn& column, const ColumnPage& page, const std::string& origin) {
         size_t next = 0;
         for (size_t i = 0; i < static_cast<size_t>(page.entries); ++i) {
           values.emplace_back();
           if (column.definition > 0 && page.definition[i] < column.definition) continue;
           left -= static_cast<int64_t>(page.strings[next].size());
           require(left >= 0, "{}: its strings are far larger than the file of {} bytes", origin, bytes());
           values.back().emplace(page.strings[next++]);
         }
         return page.entries;
       });
  return values;
}

std::vector<std::optional<int64_t>> ParquetFile::integers(int64_t group, const std::string& name) const {
  std::vector<std::optional<int64_t>> values;
  read(group, name, Kind::integers,
       [&](const ParquetColumn& column, const ColumnPage& page, const std::string&) {
         size_t next = 0;
         for (size_t i = 0; i < static_cast<size_t>(page.entries); ++i) {
           const bool null = column.definition > 0 && page.definition[i] < column.definition;
           values.push_back(null ? std::nullopt : std::optional(page.integers[next++]));
         }
         return page.entries;
       });
  return values;
}

std::vector<std::vector<int64_t>> ParquetFile::integer_lists(int64_t group, const std::string& name) const {
  std::vector<std::vector<int64_t>> lists;
  read(group, name, Kind::lists,
       [&](const ParquetColumn& column, const ColumnPage& page, const std::string& origin) {
         size_t next = 0;
         const size_t before = lists.size();
         for (size_t i = 0; i < static_cast<size_t>(page.entries); ++i) {
           if (page.repetition[i] == 0) lists.emplace_back();
           require(!lists.empty(), "{}: begins within a list", origin);
           const int32_t level = page.definition[i];
           require(level < column.filled || level == column.definition, "{}: a list holds a null", origin);
           if (level == column.definition) lists.back().push_back(page.integers[next++]);
         }
         return static_cast<int64_t>(lists.size() - before);
       });
  return lists;
}

}  // namespace megatron
