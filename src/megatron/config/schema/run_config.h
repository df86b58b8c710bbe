#pragma once

#include "megatron/config/schema/setting.h"

namespace megatron {

enum class DeviceChoice { automatic, cpu, cuda };
constexpr auto names(DeviceChoice) { return std::array{"auto", "cpu", "cuda"}; }
enum class CommChoice { automatic, threads, mpi, nccl };
constexpr auto names(CommChoice) { return std::array{"auto", "threads", "mpi", "nccl"}; }

enum class RerunMode { disabled, validate_results, report_stats };
constexpr auto names(RerunMode) { return std::array{"disabled", "validate_results", "report_stats"}; }
enum class InjectedError { correct_result, transient_error, persistent_error };
constexpr auto names(InjectedError) {
  return std::array{"correct_result", "transient_error", "persistent_error"};
}

struct RunConfig {
  static const Schema& rows();
#define SETTING(type, name, value, ...) type name = value;
#include "megatron/config/settings/run.def"
#undef SETTING
};

struct RngConfig {
  static const Schema& rows();
#define SETTING(type, name, value, ...) type name = value;
#include "megatron/config/settings/rng.def"
#undef SETTING
};

struct RerunConfig {
  static const Schema& rows();
#define SETTING(type, name, value, ...) type name = value;
#include "megatron/config/settings/rerun.def"
#undef SETTING
};

struct FtConfig {
  static const Schema& rows();
#define SETTING(type, name, value, ...) type name = value;
#include "megatron/config/settings/ft.def"
#undef SETTING
};

struct InProcessRestartConfig {
  static const Schema& rows();
#define SETTING(type, name, value, ...) type name = value;
#include "megatron/config/settings/inprocess_restart.def"
#undef SETTING
};

}  // namespace megatron
