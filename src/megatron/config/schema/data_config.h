#pragma once

#include "megatron/config/schema/setting.h"

namespace megatron {

enum class DataloaderType { none, single, cyclic, batch, external };
constexpr auto names(DataloaderType) { return std::array{"none", "single", "cyclic", "batch", "external"}; }

enum class SftDataFormat { none, chat, prompt_completion };
constexpr auto names(SftDataFormat) { return std::array{"none", "chat", "prompt_completion"}; }

enum class Packing { none, batch, offline };
constexpr auto names(Packing) { return std::array{"none", "batch", "offline"}; }

struct DatasetConfig {
  static const Schema& rows();
#define SETTING(type, name, value, ...) type name = value;
#include "megatron/config/settings/dataset.def"
#undef SETTING
};

}  // namespace megatron
