#pragma once

#include <unordered_map>

#include "megatron/base/error.h"
#include "megatron/checkpoint/torch/pickle.h"
#include "megatron/checkpoint/torch/pickle_classes.h"

namespace megatron {

// The machine behind PickleDocument: a stack of values, marks in it, and a memo.
class PickleReader {
 public:
  PickleReader(PickleDocument& document, std::span<const std::byte> data, const std::string& origin);
  void read();  // until STOP; an Error with the byte's place where the pickle is malformed

 private:
  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    throw ConfigError(fmt::format("{}: pickle, byte {}: {}", origin_, at_,
                                  fmt::format(format, std::forward<Args>(args)...)));
  }

  // Reading.
  uint64_t number(size_t bytes);  // little-endian
  std::string_view bytes(uint64_t count);
  std::string_view line();
  int64_t long_integer(uint64_t count);

  // The stack.
  PickleValue& make(PickleKind kind);
  void push(const PickleValue* value) { stack_.push_back(const_cast<PickleValue*>(value)); }
  PickleValue& pop();
  PickleValue& top();
  std::vector<const PickleValue*> pop_mark();
  void push_text(PickleKind kind, std::string_view text);
  void push_tuple(size_t count);
  void memoize(uint64_t index);
  void recall(uint64_t index);

  // Operations.
  bool step(uint8_t op);  // false at STOP
  bool step_value(uint8_t op);
  bool step_structure(uint8_t op);
  void push_global(std::string_view module, std::string_view name);
  void append(std::span<const PickleValue* const> items);
  void set_items(std::span<const PickleValue* const> pairs);
  void call();  // REDUCE
  void new_object(const PickleValue& of_class, const PickleValue& arguments);
  void build();
  void persistent();
  void call_tensor(const PickleValue& function, const PickleValue& arguments);
  void call_latin1(const PickleValue& arguments);
  void call_scalar(const PickleValue& arguments);

  PickleDocument& document_;
  std::span<const std::byte> data_;
  const std::string& origin_;
  size_t at_ = 0;
  size_t encoded_ = 0;  // bytes that were text
  std::vector<PickleValue*> stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint64_t, PickleValue*> memo_;
  PickleValue *none_, *true_, *false_, *empty_tuple_;
};

}  // namespace megatron
