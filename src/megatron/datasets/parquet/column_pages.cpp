#include "megatron/datasets/parquet/column_pages.h"

#include <bit>
#include <cstring>

#include "megatron/base/error.h"
#include "megatron/datasets/compression/decompressor.h"
#include "megatron/datasets/compression/snappy.h"
#include "megatron/datasets/parquet/thrift.h"

namespace megatron {
namespace {

std::string decompress(std::string_view bytes, int64_t codec, size_t size, const std::string& origin) {
  const std::span<const std::byte> in = std::as_bytes(std::span(bytes));
  switch (static_cast<ParquetCodec>(codec)) {
    case ParquetCodec::none:
      require(bytes.size() == size, "{}: a page of {} bytes, expected {}", origin, bytes.size(), size);
      return std::string(bytes);
    case ParquetCodec::snappy:
      return snappy_decompress(in, size, origin);
    case ParquetCodec::gzip:
      return decompress_whole(*make_gzip_decompressor(origin), in, size, origin);
    case ParquetCodec::zstd:
      return decompress_whole(*make_zstd_decompressor(origin), in, size, origin);
    default:
      fail("{}: compression {}, expected none, Snappy, gzip or zstd", origin, codec);
  }
}

uint32_t load32(std::string_view text) {
  uint32_t value;
  std::memcpy(&value, text.data(), 4);
  return value;
}

std::string_view take(std::string_view& text, uint64_t count, const std::string& origin) {
  require(count <= text.size(), "{}: {} bytes leave the page", origin, count);
  const std::string_view taken = text.substr(0, count);
  text.remove_prefix(count);
  return taken;
}

// Runs of equal values and of bit-packed ones, in turn.
std::vector<int32_t> decode_hybrid(std::string_view text, int width, int64_t count,
                                   const std::string& origin) {
  std::vector<int32_t> values;
  if (width == 0) {
    values.resize(static_cast<size_t>(count), 0);
    return values;
  }
  while (static_cast<int64_t>(values.size()) < count) {
    uint64_t head = 0;
    for (int shift = 0;; shift += 7) {
      const auto next = static_cast<uint8_t>(take(text, 1, origin)[0]);
      require(shift < 35, "{}: malformed run of levels", origin);
      head |= uint64_t{next & 0x7fu} << shift;
      if (next < 0x80) break;
    }
    const auto left = static_cast<uint64_t>(count) - values.size();
    const uint64_t mask = (uint64_t{1} << width) - 1;
    if (head & 1) {
      const uint64_t groups = head >> 1;
      require(groups > 0, "{}: an empty run of levels", origin);
      // A writer may leave out the bytes of values that the page does not have.
      const uint64_t wanted = std::min(groups * 8, left),
                     room = (wanted * static_cast<uint64_t>(width) + 7) / 8;
      const uint64_t stored = std::min<uint64_t>(groups * static_cast<uint64_t>(width), text.size());
      const std::string_view packed = take(text, stored, origin);
      require(packed.size() >= room, "{}: bit-packed values are cut", origin);
      for (uint64_t i = 0; i < wanted; ++i) {
        const uint64_t bit = i * static_cast<uint64_t>(width);
        uint64_t word = 0;
        std::memcpy(&word, packed.data() + bit / 8, std::min<size_t>(8, packed.size() - bit / 8));
        values.push_back(static_cast<int32_t>(word >> (bit % 8) & mask));
      }
    } else {
      const uint64_t run = std::min(head >> 1, left);
      require(run > 0, "{}: an empty run of levels", origin);
      const std::string_view bytes = take(text, static_cast<uint64_t>(width + 7) / 8, origin);
      uint64_t value = 0;
      std::memcpy(&value, bytes.data(), bytes.size());
      values.resize(values.size() + run, static_cast<int32_t>(value & mask));
    }
  }
  return values;
}

void decode_plain(std::string_view text, int64_t type, int64_t count, ColumnPage& page,
                  const std::string& origin) {
  for (int64_t i = 0; i < count; ++i) {
    if (type == static_cast<int64_t>(ParquetType::bytes)) {
      const uint32_t length = load32(take(text, 4, origin));
      page.strings.push_back(take(text, length, origin));
    } else if (type == static_cast<int64_t>(ParquetType::int32)) {
      page.integers.push_back(static_cast<int32_t>(load32(take(text, 4, origin))));
    } else {
      int64_t value;
      std::memcpy(&value, take(text, 8, origin).data(), 8);
      page.integers.push_back(value);
    }
  }
}

void decode_dictionary(std::string_view text, int64_t count, const ColumnPage& dictionary, ColumnPage& page,
                       const std::string& origin) {
  if (count == 0) return;
  const int width = static_cast<uint8_t>(take(text, 1, origin)[0]);
  require(width <= 32, "{}: dictionary indices of {} bits", origin, width);
  const std::vector<int32_t> indices = decode_hybrid(text, width, count, origin);
  const size_t strings = dictionary.strings.size(), integers = dictionary.integers.size();
  for (int32_t signed_index : indices) {
    const auto index = static_cast<uint32_t>(signed_index);
    require(index < strings + integers, "{}: dictionary index {} of {}", origin, index, strings + integers);
    if (strings > 0) {
      page.strings.push_back(dictionary.strings[index]);
    } else {
      page.integers.push_back(dictionary.integers[index]);
    }
  }
}

class ColumnDecoder {
 public:
  ColumnDecoder(const ColumnBytes& chunk, const ParquetColumn& column, const std::string& origin)
      : chunk_(chunk), column_(column), origin_(origin) {
    // Runs of equal values need next to no bytes, so that a count alone must not decide on memory.
    const int64_t most = (int64_t{1} << 24) + 64 * static_cast<int64_t>(chunk.bytes.size());
    require(chunk.values >= 0 && chunk.values <= most, "{}: {} values in {} bytes, at most {}", origin_,
            chunk.values, chunk.bytes.size(), most);
  }

  void run(const std::function<void(const ColumnPage&)>& take_page) {
    std::string_view rest = chunk_.bytes;
    int64_t seen = 0;
    while (seen < chunk_.values) {
      const ThriftValue header = parse_thrift(rest, origin_);
      const int64_t unpacked = header.int_at(2, origin_), packed = header.int_at(3, origin_);
      require(packed >= 0 && unpacked >= 0, "{}: a page of {} bytes", origin_, packed);
      const std::string_view bytes = take(rest, static_cast<uint64_t>(packed), origin_);
      switch (static_cast<ParquetPage>(header.int_at(1, origin_))) {
        case ParquetPage::dictionary:
          read_dictionary(header.at(7, origin_), bytes, static_cast<size_t>(unpacked));
          break;
        case ParquetPage::data:
          seen += read_page(header.at(5, origin_), bytes, static_cast<size_t>(unpacked), seen, take_page);
          break;
        case ParquetPage::data_v2:
          seen += read_page_v2(header.at(8, origin_), bytes, static_cast<size_t>(unpacked), seen, take_page);
          break;
        default:
          break;  // indices of pages
      }
    }
  }

 private:
  void read_dictionary(const ThriftValue& header, std::string_view bytes, size_t size) {
    dictionary_text_ = decompress(bytes, chunk_.codec, size, origin_);
    dictionary_ = {};
    decode_plain(dictionary_text_, column_.type, header.int_at(1, origin_), dictionary_, origin_);
  }

  int64_t entries_of(const ThriftValue& header, int64_t seen) const {
    const int64_t entries = header.int_at(1, origin_);
    require(entries >= 0 && entries <= chunk_.values - seen,
            "{}: a page of {} values, the column has {} left", origin_, entries, chunk_.values - seen);
    return entries;
  }

  std::vector<int32_t> levels(std::string_view text, int max, int64_t entries) const {
    std::vector<int32_t> values =
        decode_hybrid(text, static_cast<int>(std::bit_width(static_cast<unsigned>(max))), entries, origin_);
    for (int32_t level : values) require(level <= max, "{}: level {}, at most {}", origin_, level, max);
    return values;
  }

  int64_t read_page(const ThriftValue& header, std::string_view bytes, size_t size, int64_t seen,
                    const std::function<void(const ColumnPage&)>& take_page) {
    const std::string text = decompress(bytes, chunk_.codec, size, origin_);
    std::string_view rest = text;
    ColumnPage page{.entries = entries_of(header, seen)};
    auto prefixed = [&] { return take(rest, load32(take(rest, 4, origin_)), origin_); };
    const auto rle = static_cast<int64_t>(ParquetEncoding::rle);
    if (column_.repetition > 0) {
      require(header.int_at(4, origin_) == rle, "{}: repetition levels are not run-length encoded", origin_);
      page.repetition = levels(prefixed(), column_.repetition, page.entries);
    }
    if (column_.definition > 0) {
      require(header.int_at(3, origin_) == rle, "{}: definition levels are not run-length encoded", origin_);
      page.definition = levels(prefixed(), column_.definition, page.entries);
    }
    finish(page, rest, header.int_at(2, origin_), take_page);
    return page.entries;
  }

  int64_t read_page_v2(const ThriftValue& header, std::string_view bytes, size_t size, int64_t seen,
                       const std::function<void(const ColumnPage&)>& take_page) {
    ColumnPage page{.entries = entries_of(header, seen)};
    const int64_t definitions = header.int_at(5, origin_), repetitions = header.int_at(6, origin_);
    require(definitions >= 0 && repetitions >= 0, "{}: levels of {} bytes", origin_, definitions);
    const std::string_view repetition = take(bytes, static_cast<uint64_t>(repetitions), origin_);
    const std::string_view definition = take(bytes, static_cast<uint64_t>(definitions), origin_);
    if (column_.repetition > 0) page.repetition = levels(repetition, column_.repetition, page.entries);
    if (column_.definition > 0) page.definition = levels(definition, column_.definition, page.entries);
    const auto before = static_cast<size_t>(definitions + repetitions);
    require(size >= before, "{}: a page of {} bytes with levels of {}", origin_, size, before);
    const int64_t codec = header.int_or(7, 1) ? chunk_.codec : static_cast<int64_t>(ParquetCodec::none);
    const std::string text = decompress(bytes, codec, size - before, origin_);
    finish(page, text, header.int_at(4, origin_), take_page);
    return page.entries;
  }

  void finish(ColumnPage& page, std::string_view text, int64_t encoding,
              const std::function<void(const ColumnPage&)>& take_page) const {
    int64_t present = page.entries;
    if (column_.definition > 0) {
      present = 0;
      for (int32_t level : page.definition) present += level == column_.definition;
    }
    switch (static_cast<ParquetEncoding>(encoding)) {
      case ParquetEncoding::plain:
        decode_plain(text, column_.type, present, page, origin_);
        break;
      case ParquetEncoding::plain_dictionary:
      case ParquetEncoding::rle_dictionary:
        decode_dictionary(text, present, dictionary_, page, origin_);
        break;
      default:
        fail("{}: encoding {}, expected plain or dictionary", origin_, encoding);
    }
    take_page(page);
  }

  const ColumnBytes& chunk_;
  const ParquetColumn& column_;
  const std::string& origin_;
  std::string dictionary_text_;
  ColumnPage dictionary_;
};

}  // namespace

void read_column(const ColumnBytes& chunk, const ParquetColumn& column, const std::string& origin,
                 const std::function<void(const ColumnPage&)>& take_page) {
  ColumnDecoder(chunk, column, origin).run(take_page);
}

}  // namespace megatron
