#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megatron/config/schema/setting.h"

namespace megatron {

enum class PeftKind { none, lora, canonical_lora, dora };
constexpr auto names(PeftKind) { return std::array{"none", "lora", "canonical_lora", "dora"}; }
enum class DropoutPosition { pre, post };
constexpr auto names(DropoutPosition) { return std::array{"pre", "post"}; }

struct PeftConfig {
#define SETTING(type, name, value, ...) type name = value;
#include "megatron/config/settings/peft.def"
#undef SETTING
};

template <>
const Schema& schema<PeftConfig>();

}  // namespace megatron
