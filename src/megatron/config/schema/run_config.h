#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megatron/base/json.h"
#include "megatron/config/schema/setting.h"

namespace megatron {

enum class DeviceChoice { automatic, cpu, cuda };
constexpr auto names(DeviceChoice) { return std::array{"auto", "cpu", "cuda"}; }
enum class CommChoice { automatic, threads, mpi, nccl };
constexpr auto names(CommChoice) { return std::array{"auto", "threads", "mpi", "nccl"}; }

struct RunConfig {
  int64_t ranks = 1;
  int64_t world_size = 0;
  DeviceChoice device = DeviceChoice::automatic;
  CommChoice comm = CommChoice::automatic;
  std::string mixed_precision;
  Json env_vars;
};

template <>
const Schema& schema<RunConfig>();

struct RngConfig {
  int64_t seed = 1234;
  bool data_parallel_random_init = false;
};

template <>
const Schema& schema<RngConfig>();

}  // namespace megatron
