#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megatron/base/json.h"
#include "megatron/config/schema/setting.h"

namespace megatron {

enum class DataloaderType { none, single, cyclic, batch, external };
constexpr auto names(DataloaderType) { return std::array{"none", "single", "cyclic", "batch", "external"}; }

struct DatasetConfig {
#define SETTING(type, name, value, ...) type name = value;
#include "megatron/config/settings/dataset.def"
#undef SETTING
};

template <>
const Schema& schema<DatasetConfig>();

}  // namespace megatron
