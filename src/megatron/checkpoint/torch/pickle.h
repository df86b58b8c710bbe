#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/base/json.h"

namespace megatron {

enum class PickleKind : uint8_t {
  none,
  boolean,
  integer,
  real,
  text,
  bytes,
  list,     // also sets
  tuple,    // also torch.Size
  dict,     // also OrderedDict
  global,   // a class or function by name
  object,   // of one of the known classes; nothing of the class is run
  storage,  // a persistent id: where a tensor's bytes are
  tensor,
};

// A value of a pickle. Values are owned by their document and may contain themselves.
struct PickleValue {
  PickleKind kind = PickleKind::none;
  bool boolean = false;
  int64_t integer = 0;
  double real = 0;
  std::string_view text;  // text or bytes; the class of a global or an object
  // The elements; of a dict keys and values by turns; of an object its arguments and, if set, its state; of a
  // storage {type, key, elements}; of a tensor {storage, offset, sizes, strides} and its dtype, where given.
  std::vector<const PickleValue*> items;

  bool is(PickleKind wanted) const { return kind == wanted; }
  bool is_object(std::string_view of_class) const { return is(PickleKind::object) && text == of_class; }
  // An entry of a dict or an attribute of an object; nullptr where absent.
  const PickleValue* find(std::string_view key) const;
  // What a dict holds or an object's attributes are: keys and values by turns; empty for other kinds.
  std::span<const PickleValue* const> entries() const;
};

const char* name_of(PickleKind kind);

// A pickle of protocol 2 to 5 as plain values. Nothing is executed: classes and functions outside the list of
// pickle_classes.h are refused by name. Memory stays proportional to the pickle's size; `data` must outlive
// the document, whose texts point into it. `origin` begins the messages.
class PickleDocument {
 public:
  PickleDocument(std::span<const std::byte> data, const std::string& origin);
  PickleDocument(const PickleDocument&) = delete;
  PickleDocument& operator=(const PickleDocument&) = delete;

  const PickleValue& root() const { return *root_; }

 private:
  friend class PickleReader;
  std::deque<PickleValue> values_;
  std::deque<std::string> texts_;  // those that are not in the data as they are
  const PickleValue* root_ = nullptr;
};

// A value as JSON, for what is kept of a run's arguments and schedules: tuples become arrays, objects their
// attributes, bytes and tensors null. Nesting deeper than 64 and more than a million values are refused.
Json to_json(const PickleValue& value, const std::string& origin);

}  // namespace megatron
