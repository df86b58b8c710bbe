// What PickleReader does with functions and classes that it knows, in place of calling them.
#include <bit>
#include <cstring>

#include "megatron/base/error.h"
#include "megatron/checkpoint/torch/pickle_reader.h"

namespace megatron {
namespace {

PickleClass class_of(std::string_view qualified) {
  const size_t dot = qualified.rfind('.');
  return pickle_class(qualified.substr(0, dot), qualified.substr(dot + 1));
}

}  // namespace

void PickleReader::call() {
  const PickleValue &arguments = pop(), &function = pop();
  if (!function.is(PickleKind::global) || !arguments.is(PickleKind::tuple))
    refuse("a call of {} with {}", name_of(function.kind), name_of(arguments.kind));
  const auto& items = arguments.items;
  switch (class_of(function.text)) {
    case PickleClass::dict:  // a defaultdict has its function as argument
      if (!items.empty() && !items[0]->is(PickleKind::global))
        refuse("{} of values in one call", function.text);
      return push(&make(PickleKind::dict));
    case PickleClass::list:  // shared, not copied: a recalled list costs two bytes
      if (!items.empty() && !items[0]->is(PickleKind::list))
        refuse("{} of {}", function.text, name_of(items[0]->kind));
      return push(items.empty() ? &make(PickleKind::list) : items[0]);
    case PickleClass::size:
    case PickleClass::same:
    case PickleClass::parameter:
      if (items.empty()) refuse("{} has no argument", function.text);
      return push(items[0]);
    case PickleClass::latin1:
      return call_latin1(arguments);
    case PickleClass::tensor:
      return call_tensor(function, arguments);
    case PickleClass::numpy_scalar:
      return call_scalar(arguments);
    case PickleClass::object:
    case PickleClass::choice:
      return new_object(function, arguments);
    default:
      refuse("{} is called, which is a plain value", function.text);
  }
}

void PickleReader::new_object(const PickleValue& of_class, const PickleValue& arguments) {
  if (!of_class.is(PickleKind::global) || !arguments.is(PickleKind::tuple))
    refuse("an object of {} with {}", name_of(of_class.kind), name_of(arguments.kind));
  switch (class_of(of_class.text)) {
    case PickleClass::object:
    case PickleClass::choice: {
      PickleValue& value = make(PickleKind::object);
      value.text = of_class.text;
      value.items = {&arguments};
      return push(&value);
    }
    case PickleClass::dict:
      return push(&make(PickleKind::dict));
    default:
      refuse("{} is no class that can be made", of_class.text);
  }
}

// _rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks); v3 has the dtype after these.
void PickleReader::call_tensor(const PickleValue& function, const PickleValue& arguments) {
  const auto& items = arguments.items;
  const bool v3 = function.text.ends_with("_v3");
  if (items.size() < (v3 ? 7 : 4) || !items[0]->is(PickleKind::storage) ||
      !items[1]->is(PickleKind::integer) || !items[2]->is(PickleKind::tuple) ||
      !items[3]->is(PickleKind::tuple) || (v3 && !items[6]->is(PickleKind::global)))
    refuse("{} has other arguments than a storage, an offset, sizes and strides", function.text);
  PickleValue& value = make(PickleKind::tensor);
  value.items.assign(items.begin(), items.begin() + 4);
  if (v3) value.items.push_back(items[6]);
  push(&value);
}

// Bytes as protocol 2 has them: text of the characters 0 to 255.
void PickleReader::call_latin1(const PickleValue& arguments) {
  if (arguments.items.empty() || !arguments.items[0]->is(PickleKind::text))
    refuse("_codecs.encode of no text");
  const std::string_view text = arguments.items[0]->text;
  // A recalled text costs two bytes of the pickle, but its length each time that it is converted.
  if ((encoded_ += text.size()) > data_.size()) refuse("more bytes in text form than the pickle has");
  std::string& result = document_.texts_.emplace_back();
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<uint8_t>(text[i]);
    if (c < 0x80) {
      result += static_cast<char>(c);
      continue;
    }
    const bool two =
        (c == 0xc2 || c == 0xc3) && i + 1 < text.size() && (static_cast<uint8_t>(text[i + 1]) & 0xc0) == 0x80;
    if (!two) refuse("_codecs.encode of a text that is not Latin-1");
    result += static_cast<char>((c & 0x3) << 6 | (static_cast<uint8_t>(text[++i]) & 0x3f));
  }
  push_text(PickleKind::bytes, result);
}

// numpy's scalar(dtype, bytes): dtype("f8", …) with the byte order in its state.
void PickleReader::call_scalar(const PickleValue& arguments) {
  const auto& items = arguments.items;
  if (items.size() != 2 || !items[0]->is_object("numpy.dtype") || !items[1]->is(PickleKind::bytes) ||
      items[0]->items.empty() || items[0]->items[0]->items.empty())
    refuse("numpy.scalar has other arguments than a dtype and bytes");
  const std::string_view dtype = items[0]->items[0]->items[0]->text, raw = items[1]->text;
  const char kind = dtype.empty() ? '?' : dtype[0];
  if (raw.size() > 8 || raw.empty())
    refuse("numpy.scalar of dtype {} with {} bytes", dtype.substr(0, 16), raw.size());
  uint64_t bits = 0;
  std::memcpy(&bits, raw.data(), raw.size());
  PickleValue& value = make(kind == 'f'   ? PickleKind::real
                            : kind == 'b' ? PickleKind::boolean
                                          : PickleKind::integer);
  if (kind == 'f' && raw.size() == 8) {
    value.real = std::bit_cast<double>(bits);
  } else if (kind == 'f' && raw.size() == 4) {
    value.real = std::bit_cast<float>(static_cast<uint32_t>(bits));
  } else if (kind == 'b') {
    value.boolean = bits != 0;
  } else if (kind == 'i' || kind == 'u') {
    const size_t shift = 64 - 8 * raw.size();
    value.integer = kind == 'u' ? static_cast<int64_t>(bits) : static_cast<int64_t>(bits << shift) >> shift;
  } else {
    refuse("numpy.scalar of dtype {}, which is no number", dtype.substr(0, 16));
  }
  push(&value);
}

}  // namespace megatron
