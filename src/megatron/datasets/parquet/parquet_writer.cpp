#include "megatron/datasets/parquet/parquet_writer.h"

#include <limits>
#include <optional>

#include "megatron/base/error.h"
#include "megatron/datasets/compression/decompressor.h"
#include "megatron/datasets/compression/snappy.h"
#include "megatron/datasets/parquet/thrift.h"

namespace megatron {
namespace {

constexpr size_t kPageBytes = size_t{1} << 20;
// Converted types of the format.
constexpr int32_t kUtf8 = 0, kList = 3;

template <class Enum>
int32_t number(Enum value) {
  return static_cast<int32_t>(value);
}

template <class T>
void append_raw(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

// Levels of 0 and 1 as runs, behind their length in bytes.
void append_levels(std::string& out, const std::vector<uint8_t>& levels) {
  std::string runs;
  for (size_t i = 0; i < levels.size();) {
    size_t end = i;
    while (end < levels.size() && levels[end] == levels[i]) ++end;
    size_t head = (end - i) << 1;
    for (; head >= 0x80; head >>= 7) runs += static_cast<char>(head | 0x80);
    runs += static_cast<char>(head);
    runs += static_cast<char>(levels[i]);
    i = end;
  }
  append_raw(out, static_cast<uint32_t>(runs.size()));
  out += runs;
}

std::string compress(std::string_view text, ParquetCodec codec) {
  const std::span<const std::byte> in = std::as_bytes(std::span(text));
  switch (codec) {
    case ParquetCodec::snappy:
      return snappy_compress(in);
    case ParquetCodec::gzip:
      return gzip_compress(in);
    case ParquetCodec::zstd:
      return zstd_compress(in);
    default:
      return std::string(text);
  }
}

}  // namespace

struct ParquetWriter::Page {
  std::vector<uint8_t> repetition, definition;  // of lists
  std::string values;
  int64_t entries = 0;
};

ParquetWriter::ParquetWriter(const std::string& path, std::vector<ParquetField> fields, ParquetCodec codec)
    : file_(path), fields_(std::move(fields)), codec_(codec) {
  write(kParquetMagic);
}

void ParquetWriter::write(std::string_view text) {
  file_.write(text);
  position_ += static_cast<int64_t>(text.size());
}

void ParquetWriter::write_page(const Page& page, Chunk& chunk) {
  std::string text;
  if (!page.definition.empty()) {
    append_levels(text, page.repetition);
    append_levels(text, page.definition);
  }
  text += page.values;
  const std::string packed = compress(text, codec_);
  constexpr size_t kMost = std::numeric_limits<int32_t>::max();
  require(text.size() <= kMost && packed.size() <= kMost, "{}: a row of {} bytes, at most 2^31-1",
          file_.path(), text.size());
  ThriftWriter header;
  header.begin();
  header.field_int32(1, number(ParquetPage::data));
  header.field_int32(2, static_cast<int32_t>(text.size()));
  header.field_int32(3, static_cast<int32_t>(packed.size()));
  header.begin_struct(5);
  header.field_int32(1, static_cast<int32_t>(page.entries));
  header.field_int32(2, number(ParquetEncoding::plain));
  header.field_int32(3, number(ParquetEncoding::rle));
  header.field_int32(4, number(ParquetEncoding::rle));
  header.end();
  header.end();
  write(header.text());
  write(packed);
  chunk.values += page.entries;
  chunk.unpacked += static_cast<int64_t>(header.text().size() + text.size());
}

ParquetWriter::Chunk ParquetWriter::write_column(const ParquetField& field,
                                                 const std::variant<Texts, Lists>& values) {
  Chunk chunk{.begin = position_};
  Page page;
  auto flush = [&](bool always) {
    if (page.entries == 0 || (!always && page.values.size() < kPageBytes)) return;
    write_page(page, chunk);
    page = {};
  };
  if (field.kind == ParquetKind::text) {
    for (const std::string& text : std::get<Texts>(values)) {
      append_raw(page.values, static_cast<uint32_t>(text.size()));
      page.values += text;
      ++page.entries;
      flush(false);
    }
  } else {
    for (const std::vector<int64_t>& list : std::get<Lists>(values)) {
      for (size_t i = 0; i < std::max<size_t>(list.size(), 1); ++i) {
        page.repetition.push_back(i > 0);
        page.definition.push_back(!list.empty());
        ++page.entries;
      }
      for (int64_t value : list) {
        const auto narrow = static_cast<int32_t>(value);
        const bool wide = field.kind == ParquetKind::int64_list;
        require(wide || narrow == value, "{}: {} in '{}' does not fit into int32", file_.path(), value,
                field.name);
        if (wide) {
          append_raw(page.values, value);
        } else {
          append_raw(page.values, narrow);
        }
      }
      flush(false);
    }
  }
  flush(true);
  chunk.bytes = position_ - chunk.begin;
  return chunk;
}

void ParquetWriter::write_rows(std::span<const std::variant<Texts, Lists>> columns) {
  require(columns.size() == fields_.size(), "{}: {} columns, expected {}", file_.path(), columns.size(),
          fields_.size());
  Group group;
  for (size_t i = 0; i < columns.size(); ++i) {
    const auto rows =
        std::visit([](const auto& values) { return static_cast<int64_t>(values.size()); }, columns[i]);
    const bool text = std::holds_alternative<Texts>(columns[i]);
    require(text == (fields_[i].kind == ParquetKind::text), "{}: the values of '{}' are of another kind",
            file_.path(), fields_[i].name);
    require(i == 0 || rows == group.rows, "{}: {} values of '{}', expected {}", file_.path(), rows,
            fields_[i].name, group.rows);
    group.rows = rows;
  }
  for (size_t i = 0; i < columns.size(); ++i) group.chunks.push_back(write_column(fields_[i], columns[i]));
  groups_.push_back(std::move(group));
}

std::string ParquetWriter::footer() const {
  ThriftWriter out;
  auto schema = [&](std::string_view name, std::optional<ParquetType> type,
                    std::optional<ParquetRepetition> repetition, int32_t children,
                    std::optional<int32_t> converted) {
    out.begin();
    if (type) out.field_int32(1, number(*type));
    if (repetition) out.field_int32(3, number(*repetition));
    out.field_bytes(4, name);
    if (children > 0) out.field_int32(5, children);
    if (converted) out.field_int32(6, *converted);
    out.end();
  };
  auto type_of = [](const ParquetField& field) {
    return field.kind == ParquetKind::text         ? ParquetType::bytes
           : field.kind == ParquetKind::int32_list ? ParquetType::int32
                                                   : ParquetType::int64;
  };
  size_t elements = 1;
  for (const ParquetField& field : fields_) elements += field.kind == ParquetKind::text ? 1 : 3;
  out.begin();
  out.field_int32(1, 1);
  out.begin_list(2, elements, ThriftWriter::kStruct);
  schema("schema", {}, {}, static_cast<int32_t>(fields_.size()), {});
  for (const ParquetField& field : fields_) {
    if (field.kind == ParquetKind::text) {
      schema(field.name, ParquetType::bytes, ParquetRepetition::required, 0, kUtf8);
    } else {
      schema(field.name, {}, ParquetRepetition::required, 1, kList);
      schema("list", {}, ParquetRepetition::repeated, 1, {});
      schema("element", type_of(field), ParquetRepetition::required, 0, {});
    }
  }
  int64_t rows = 0;
  for (const Group& group : groups_) rows += group.rows;
  out.field_int64(3, rows);
  out.begin_list(4, groups_.size(), ThriftWriter::kStruct);
  for (const Group& group : groups_) {
    out.begin();
    out.begin_list(1, group.chunks.size(), ThriftWriter::kStruct);
    int64_t bytes = 0;
    for (size_t i = 0; i < group.chunks.size(); ++i) {
      const Chunk& chunk = group.chunks[i];
      const bool list = fields_[i].kind != ParquetKind::text;
      out.begin();
      out.field_int64(2, chunk.begin);
      out.begin_struct(3);
      out.field_int32(1, number(type_of(fields_[i])));
      out.begin_list(2, 2, ThriftWriter::kInt32);
      out.int32(number(ParquetEncoding::plain));
      out.int32(number(ParquetEncoding::rle));
      out.begin_list(3, list ? 3 : 1, ThriftWriter::kBytes);
      out.bytes(fields_[i].name);
      if (list) out.bytes("list"), out.bytes("element");
      out.field_int32(4, number(codec_));
      out.field_int64(5, chunk.values);
      out.field_int64(6, chunk.unpacked);
      out.field_int64(7, chunk.bytes);
      out.field_int64(9, chunk.begin);
      out.end();
      out.end();
      bytes += chunk.unpacked;
    }
    out.field_int64(2, bytes);
    out.field_int64(3, group.rows);
    out.end();
  }
  out.field_bytes(6, "megatron");
  out.end();
  return out.text();
}

void ParquetWriter::commit() {
  const std::string text = footer();
  write(text);
  std::string end;
  append_raw(end, static_cast<uint32_t>(text.size()));
  write(end);
  write(kParquetMagic);
  file_.commit();
}

}  // namespace megatron
