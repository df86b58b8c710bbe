#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megatron/config/schema/setting.h"

namespace megatron {

enum class RerunMode { disabled, validate_results, report_stats };
constexpr auto names(RerunMode) { return std::array{"disabled", "validate_results", "report_stats"}; }
enum class InjectedError { correct_result, transient_error, persistent_error };
constexpr auto names(InjectedError) {
  return std::array{"correct_result", "transient_error", "persistent_error"};
}

struct RerunConfig {
#define SETTING(type, name, value, ...) type name = value;
#include "megatron/config/settings/rerun.def"
#undef SETTING
};

template <>
const Schema& schema<RerunConfig>();

enum class SimulatedFault { random, rank_killed, rank_hung };
constexpr auto names(SimulatedFault) { return std::array{"random", "rank_killed", "rank_hung"}; }

struct FaultToleranceConfig {
#define SETTING(type, name, value, ...) type name = value;
#include "megatron/config/settings/ft.def"
#undef SETTING
};

template <>
const Schema& schema<FaultToleranceConfig>();

struct StragglerConfig {
#define SETTING(type, name, value, ...) type name = value;
#include "megatron/config/settings/straggler.def"
#undef SETTING
};

template <>
const Schema& schema<StragglerConfig>();

struct NvrxStragglerConfig {
#define SETTING(type, name, value, ...) type name = value;
#include "megatron/config/settings/nvrx_straggler.def"
#undef SETTING
};

template <>
const Schema& schema<NvrxStragglerConfig>();

enum class RestartGranularity { node, rank };
constexpr auto names(RestartGranularity) { return std::array{"node", "rank"}; }

struct InProcessRestartConfig {
#define SETTING(type, name, value, ...) type name = value;
#include "megatron/config/settings/inprocess_restart.def"
#undef SETTING
};

template <>
const Schema& schema<InProcessRestartConfig>();

}  // namespace megatron
