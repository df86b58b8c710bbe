#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "megatron/base/json.h"
#include "megatron/base/shape.h"

namespace megatron {

// Writes a pickle of protocol 2, value by value: what PyTorch's readers and torch.load(weights_only=True)
// take. Containers are opened and closed; between a dict's ends keys and values alternate.
class PickleWriter {
 public:
  PickleWriter();

  void none() { pickle_ += 'N'; }
  void boolean(bool value) { pickle_ += value ? '\x88' : '\x89'; }
  void integer(int64_t value);
  void real(double value);
  void text(std::string_view value);
  void sizes(const Shape& shape);  // torch.Size
  // Objects become dicts, arrays lists.
  void json(const Json& value);

  void begin_list() { pickle_ += "]("; }
  void end_list() { pickle_ += 'e'; }
  void begin_tuple() { pickle_ += '('; }
  void end_tuple() { pickle_ += 't'; }
  void begin_dict() { pickle_ += "}("; }
  void end_dict() { pickle_ += 'u'; }

  void global(std::string_view module, std::string_view name);
  void call() { pickle_ += 'R'; }  // of the global before the last tuple
  // An object of a class without arguments; set_state() takes the value after it as its state.
  void object(std::string_view module, std::string_view name);
  void set_state() { pickle_ += 'b'; }
  void persistent() { pickle_ += 'Q'; }  // the value before it is a persistent id

  std::string finish();  // the pickle, once

 private:
  void number(uint64_t value, size_t bytes);
  std::string pickle_;
  std::map<std::string, size_t, std::less<>> memo_;  // of globals
};

}  // namespace megatron
