#include "megatron/checkpoint/torch/pickle_classes.h"

#include <algorithm>
#include <array>

namespace megatron {
namespace {

struct Known {
  std::string_view module, name;  // an empty name: every class of the module
  PickleClass meaning;
};

using enum PickleClass;

// What PyTorch and Megatron-LM write into checkpoints. Classes of a whole module are dataclasses and enums.
constexpr Known kKnown[] = {
    {"collections", "OrderedDict", dict},
    {"collections", "defaultdict", dict},
    {"builtins", "dict", dict},
    {"builtins", "set", list},
    {"builtins", "frozenset", list},
    {"builtins", "list", list},
    {"builtins", "bytearray", same},
    {"builtins", "int", value},
    {"builtins", "float", value},
    {"builtins", "bool", value},
    {"builtins", "str", value},
    {"builtins", "slice", object},
    {"_codecs", "encode", latin1},
    {"argparse", "Namespace", object},
    {"types", "SimpleNamespace", object},
    {"pathlib", "PosixPath", object},
    {"pathlib", "PurePosixPath", object},
    {"pathlib._local", "PosixPath", object},
    {"datetime", "timedelta", object},
    {"signal", "Signals", choice},
    {"_io", "BytesIO", object},
    {"numpy", "dtype", object},
    {"numpy", "ndarray", object},
    {"numpy.core.multiarray", "_reconstruct", object},
    {"numpy._core.multiarray", "_reconstruct", object},
    {"numpy.core.multiarray", "scalar", numpy_scalar},
    {"numpy._core.multiarray", "scalar", numpy_scalar},
    {"torch", "Size", size},
    {"torch", "device", object},
    {"torch._utils", "_rebuild_tensor", tensor},
    {"torch._utils", "_rebuild_tensor_v2", tensor},
    {"torch._utils", "_rebuild_tensor_v3", tensor},
    {"torch._utils", "_rebuild_parameter", parameter},
    {"torch._utils", "_rebuild_parameter_with_state", parameter},
    {"torch._tensor", "_rebuild_from_type_v2", object},
    {"torch.serialization", "_get_layout", object},
    {"torch.storage", "UntypedStorage", value},
    {"torch.distributed.checkpoint.metadata", "", object},
    {"torch.distributed.checkpoint.filesystem", "", object},
    {"torch.distributed.checkpoint.planner", "", object},
    {"megatron.core.enums", "", choice},
    {"megatron.core.transformer.enums", "", choice},
    {"megatron.core.rerun_state_machine", "", choice},
    {"megatron.core.optimizer.optimizer_config", "", object},
    {"megatron.core.optimizer", "OptimizerConfig", object},
};

// torch.float32, torch.BFloat16Storage and their like.
constexpr std::array kTorchValues = {"float64",
                                     "float32",
                                     "float16",
                                     "bfloat16",
                                     "float8_e4m3fn",
                                     "float8_e5m2",
                                     "int64",
                                     "int32",
                                     "int16",
                                     "int8",
                                     "uint8",
                                     "uint16",
                                     "uint32",
                                     "uint64",
                                     "bool",
                                     "DoubleStorage",
                                     "FloatStorage",
                                     "HalfStorage",
                                     "LongStorage",
                                     "IntStorage",
                                     "ShortStorage",
                                     "CharStorage",
                                     "ByteStorage",
                                     "BoolStorage",
                                     "BFloat16Storage",
                                     "strided",
                                     "contiguous_format"};

}  // namespace

PickleClass pickle_class(std::string_view module, std::string_view name) {
  if (module == "__builtin__") module = "builtins";
  for (const Known& known : kKnown)
    if (module == known.module && (known.name.empty() || name == known.name)) return known.meaning;
  if (module == "torch" && std::ranges::find(kTorchValues, name) != kTorchValues.end()) return value;
  return unknown;
}

}  // namespace megatron
