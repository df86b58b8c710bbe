#include "megatron/device/gpu_info.h"

namespace megatron {

GpuReport look_for_gpus() { return {}; }

}  // namespace megatron
