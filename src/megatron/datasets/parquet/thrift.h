#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace megatron {

// A value of Thrift's compact protocol, of which Parquet's headers are made.
struct ThriftValue {
  int64_t integer = 0;            // also booleans
  std::string_view bytes;         // of the text that was parsed
  std::vector<ThriftValue> list;  // elements, or the fields of a struct
  std::vector<int> ids;           // of fields

  // The field of a struct; nullptr where it is absent.
  const ThriftValue* find(int id) const;
  // Fields that must be there; an Error names `origin` otherwise.
  const ThriftValue& at(int id, const std::string& origin) const;
  int64_t int_at(int id, const std::string& origin) const { return at(id, origin).integer; }
  int64_t int_or(int id, int64_t otherwise) const;
};

// Reads one struct from the front of `text`, which shrinks by it. Memory grows with what is really there; an
// Error names `origin` where the text is malformed.
ThriftValue parse_thrift(std::string_view& text, const std::string& origin);

// Writes the compact protocol.
class ThriftWriter {
 public:
  void field_int32(int id, int32_t value) { header(id, 5), zigzag(value); }
  void field_int64(int id, int64_t value) { header(id, 6), zigzag(value); }
  void field_bytes(int id, std::string_view value) { header(id, 8), bytes(value); }
  void begin_struct(int id) { header(id, 12), begin(); }
  void begin_list(int id, size_t count, int element);  // element: Thrift's type
  // Elements of a list.
  void int32(int32_t value) { zigzag(value); }
  void bytes(std::string_view value);
  void begin() { last_.push_back(0); }
  void end();
  const std::string& text() const { return text_; }

  static constexpr int kInt32 = 5, kBytes = 8, kStruct = 12;

 private:
  void header(int id, int type);
  void varint(uint64_t value);
  void zigzag(int64_t value) {
    varint(static_cast<uint64_t>(value) << 1 ^ static_cast<uint64_t>(value >> 63));
  }

  std::string text_;
  std::vector<int> last_;  // the field before, of each open struct
};

}  // namespace megatron
