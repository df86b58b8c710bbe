#pragma once

#include <string_view>

namespace megatron {

// What a name of a pickle means to the reader.
enum class PickleClass : uint8_t {
  unknown,       // refused
  value,         // stands for itself: a dtype, a storage type
  object,        // its arguments and attributes are kept
  choice,        // an enum: its value is kept as an object's argument
  dict,          // OrderedDict, defaultdict
  list,          // set, frozenset, list
  size,          // torch.Size: its tuple
  same,          // a function whose result is its first argument
  latin1,        // _codecs.encode: text that stands for bytes
  tensor,        // _rebuild_tensor_v2, _rebuild_tensor_v3
  parameter,     // _rebuild_parameter: the tensor that is its first argument
  numpy_scalar,  // a number from its dtype and bytes
};

// The meaning of module.name.
PickleClass pickle_class(std::string_view module, std::string_view name);

}  // namespace megatron
