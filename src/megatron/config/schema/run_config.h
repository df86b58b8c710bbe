#pragma once

#include "megatron/config/schema/setting.h"

namespace megatron {

enum class DeviceChoice { automatic, cpu, cuda };
constexpr auto names(DeviceChoice) { return std::array{"auto", "cpu", "cuda"}; }
enum class CommChoice { automatic, threads, mpi, nccl };
constexpr auto names(CommChoice) { return std::array{"auto", "threads", "mpi", "nccl"}; }

struct RunConfig {
#define SETTING(type, name, value, ...) type name = value;
#include "megatron/config/settings/run.def"
#undef SETTING
};

template <>
const Schema& schema<RunConfig>();

struct RngConfig {
#define SETTING(type, name, value, ...) type name = value;
#include "megatron/config/settings/rng.def"
#undef SETTING
};

template <>
const Schema& schema<RngConfig>();

}  // namespace megatron
