#include "megatron/datasets/parquet/thrift.h"

#include <algorithm>
#include <limits>

#include "megatron/base/error.h"

namespace megatron {
namespace {

class Parser {
 public:
  Parser(std::string_view text, const std::string& origin) : text_(text), origin_(origin) {}

  std::string_view rest() const { return text_; }

  ThriftValue structure(int depth) {
    require(depth < 32, "{}: its header is nested too deeply", origin_);
    ThriftValue value;
    int64_t id = 0;
    while (true) {
      const auto head = byte();
      if (head == 0) return value;
      id = head >> 4 ? id + (head >> 4) : zigzag();
      require(id > 0 && id <= std::numeric_limits<int16_t>::max(), "{}: its header holds a field {}", origin_,
              id);
      value.ids.push_back(static_cast<int>(id));
      value.list.push_back(element(head & 15, depth, true));
    }
  }

 private:
  uint8_t byte() {
    require(!text_.empty(), "{}: its header is cut", origin_);
    const auto value = static_cast<uint8_t>(text_[0]);
    text_.remove_prefix(1);
    return value;
  }
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const uint64_t next = byte();
      value |= (next & 0x7f) << shift;
      if (next < 0x80) return value;
    }
    fail("{}: its header holds a malformed number", origin_);
  }
  int64_t zigzag() {
    const uint64_t value = varint();
    return static_cast<int64_t>(value >> 1 ^ (~(value & 1) + 1));
  }
  std::string_view take(uint64_t count) {
    require(count <= text_.size(), "{}: {} bytes leave its header", origin_, count);
    const std::string_view value = text_.substr(0, count);
    text_.remove_prefix(count);
    return value;
  }

  ThriftValue element(int type, int depth, bool field) {
    ThriftValue value;
    switch (type) {
      case 1:
      case 2:
        value.integer = field ? type == 1 : byte() == 1;
        break;
      case 3:
        value.integer = static_cast<int8_t>(byte());
        break;
      case 4:
      case 5:
      case 6:
        value.integer = zigzag();
        break;
      case 7:
        value.bytes = take(8);
        break;
      case 8:
        value.bytes = take(varint());
        break;
      case 9:
      case 10: {
        require(depth < 32, "{}: its header is nested too deeply", origin_);
        const uint8_t head = byte();
        const uint64_t count = head >> 4 == 15 ? varint() : head >> 4;
        require(count <= text_.size(), "{}: a list of {} elements leaves its header", origin_, count);
        for (uint64_t i = 0; i < count; ++i) value.list.push_back(element(head & 15, depth + 1, false));
        break;
      }
      case 11: {
        const uint64_t count = varint();
        require(depth < 32 && count <= text_.size(), "{}: a map of {} elements leaves its header", origin_,
                count);
        const uint8_t types = count > 0 ? byte() : 0;
        for (uint64_t i = 0; i < count; ++i) {
          value.list.push_back(element(types >> 4, depth + 1, false));
          value.list.push_back(element(types & 15, depth + 1, false));
        }
        break;
      }
      case 12:
        value = structure(depth + 1);
        break;
      default:
        fail("{}: its header holds the unknown type {}", origin_, type);
    }
    return value;
  }

  std::string_view text_;
  const std::string& origin_;
};

}  // namespace

const ThriftValue* ThriftValue::find(int id) const {
  const auto found = std::find(ids.begin(), ids.end(), id);
  return found == ids.end() ? nullptr : &list[static_cast<size_t>(found - ids.begin())];
}

const ThriftValue& ThriftValue::at(int id, const std::string& origin) const {
  const ThriftValue* value = find(id);
  require(value != nullptr, "{}: its header has no field {}", origin, id);
  return *value;
}

int64_t ThriftValue::int_or(int id, int64_t otherwise) const {
  const ThriftValue* value = find(id);
  return value ? value->integer : otherwise;
}

ThriftValue parse_thrift(std::string_view& text, const std::string& origin) {
  Parser parser(text, origin);
  ThriftValue value = parser.structure(0);
  text = parser.rest();
  return value;
}

void ThriftWriter::varint(uint64_t value) {
  for (; value >= 0x80; value >>= 7) text_ += static_cast<char>(value | 0x80);
  text_ += static_cast<char>(value);
}

void ThriftWriter::header(int id, int type) {
  text_ +=
      static_cast<char>((id - last_.back()) << 4 | type);  // ids rise by less than 16 in all that is written
  last_.back() = id;
}

void ThriftWriter::bytes(std::string_view value) {
  varint(value.size());
  text_ += value;
}

void ThriftWriter::begin_list(int id, size_t count, int element) {
  header(id, 9);
  if (count < 15) {
    text_ += static_cast<char>(count << 4 | static_cast<size_t>(element));
  } else {
    text_ += static_cast<char>(0xf0 | element);
    varint(count);
  }
}

void ThriftWriter::end() {
  text_ += '\0';
  last_.pop_back();
}

}  // namespace megatron
