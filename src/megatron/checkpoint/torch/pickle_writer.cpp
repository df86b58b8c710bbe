#include "megatron/checkpoint/torch/pickle_writer.h"

#include <bit>
#include <limits>

namespace megatron {

PickleWriter::PickleWriter() : pickle_("\x80\x02") {}

void PickleWriter::number(uint64_t value, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) pickle_ += static_cast<char>(value >> (8 * i) & 0xff);
}

void PickleWriter::integer(int64_t value) {
  if (value >= std::numeric_limits<int32_t>::min() && value <= std::numeric_limits<int32_t>::max()) {
    pickle_ += 'J';
    return number(static_cast<uint64_t>(value), 4);
  }
  pickle_ += "\x8a\x08";
  number(static_cast<uint64_t>(value), 8);
}

void PickleWriter::real(double value) {
  pickle_ += 'G';
  const auto bits = std::bit_cast<uint64_t>(value);
  for (int i = 7; i >= 0; --i) pickle_ += static_cast<char>(bits >> (8 * i) & 0xff);
}

void PickleWriter::text(std::string_view value) {
  pickle_ += 'X';
  number(value.size(), 4);
  pickle_ += value;
}

void PickleWriter::global(std::string_view module, std::string_view name) {
  std::string words = std::string(module) + '\n' + std::string(name) + '\n';
  const auto [known, is_new] = memo_.emplace(std::move(words), memo_.size());
  if (is_new) pickle_ += 'c' + known->first;
  pickle_ += is_new ? 'r' : 'j';  // LONG_BINPUT, LONG_BINGET
  number(known->second, 4);
}

void PickleWriter::object(std::string_view module, std::string_view name) {
  global(module, name);
  pickle_ += ")\x81";
}

void PickleWriter::sizes(const Shape& shape) {
  global("torch", "Size");
  begin_tuple();
  begin_tuple();
  for (int64_t size : shape) integer(size);
  end_tuple();
  end_tuple();
  call();
}

void PickleWriter::json(const Json& value) {
  if (value.is_null()) return none();
  if (value.is_bool()) return boolean(value.as_bool());
  if (value.is_int()) return integer(value.as_int());
  if (value.is_double()) return real(value.as_double());
  if (value.is_string()) return text(value.as_string());
  if (value.is_array()) {
    begin_list();
    for (const Json& item : value.as_array()) json(item);
    return end_list();
  }
  begin_dict();
  for (const auto& [key, item] : value.as_object()) {
    text(key);
    json(item);
  }
  end_dict();
}

std::string PickleWriter::finish() {
  pickle_ += '.';
  return std::move(pickle_);
}

}  // namespace megatron
