#include "megatron/cli/rank_launch.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <mutex>

#include "megatron/base/atomic_file.h"
#include "megatron/base/error.h"
#include "megatron/base/json.h"
#include "megatron/device/cpu_pool.h"

namespace megatron {
namespace {

Device device_of(const Config& config, int rank) {
  const RunConfig& run = config.run;
  const int gpus = run.device == DeviceChoice::cpu ? 0 : cuda_device_count();
  if (run.device == DeviceChoice::cuda && gpus == 0)
    throw ConfigError("--device cuda: no usable GPU is there; leave it out, or use --device cpu");
  return gpus > 0 ? Device{DeviceType::Cuda, static_cast<int8_t>(rank % gpus)} : kCpu;
}

// What the ranks of this process did last, for whoever asks why a run ended.
void keep_flight_record(const DistConfig& dist, int rank, const ProcessGroup& world, const Log& log) {
  if (dist.flight_recorder_dump_path.empty()) return;
  try {
    std::filesystem::create_directories(dist.flight_recorder_dump_path);
    write_file_atomically(fmt::format("{}/flight_record_{}.txt", dist.flight_recorder_dump_path, rank),
                          world.flight_record());
  } catch (const std::exception& error) {  // the first fault is what matters
    log.warning("{}", error.what());
  }
}

uint64_t hash_of(const std::string& text) {
  uint64_t hash = 14695981039346656037u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

// Sections that decide what is computed; where ranks live, what they print and where files are may differ.
constexpr std::array<std::string_view, 9> kCommon{"model",     "dist", "train", "validation", "optimizer",
                                                  "scheduler", "ddp",  "rng",   "peft"};

// Processes that were given other settings would compute something that nobody asked for, or wait for each
// other.
void require_same_settings(const Config& config, const ProcessGroup& world) {
  Config compared = config;
  compared.dist.flight_recorder_dump_path.clear();
  const Json settings = compared.to_json();
  std::vector<uint64_t> own;
  for (const std::string_view section : kCommon)
    own.push_back(hash_of(settings.at(std::string(section)).dump()));
  const auto count = static_cast<int64_t>(own.size());
  std::vector<uint64_t> all(own.size() * static_cast<size_t>(world.size()));
  world
      .all_gather(Tensor::wrap(own.data(), {count}, DType::I64),
                  Tensor::wrap(all.data(), {count * world.size()}, DType::I64))
      .wait();
  for (size_t i = own.size(); i < all.size(); ++i)
    if (all[i] != all[i % own.size()])
      throw ConfigError(
          fmt::format("the process of rank {} was given other settings than that of rank 0, the first in "
                      "section {}; give all processes the same (where --recompute-modules auto chooses, "
                      "--recompute-memory-gib too: machines may differ)",
                      i / own.size(), kCommon[i % own.size()]));
}

}  // namespace

DeviceType device_type(const Config& config) { return device_of(config, 0).type; }

LaunchPlace launch_place() {
  return find_place([](const char* name) { return std::getenv(name); });
}

void run_on_ranks(const Config& config, const LaunchPlace& place, const Log& log,
                  const std::function<void(RankContext&, const ProcessGroup& world)>& fn) {
  const RunConfig& where = config.run;
  const auto ranks = static_cast<int>(where.ranks);
  const int threads = std::max(1, available_cores() / (ranks * place.processes_here));
  Launch launch({.ranks = ranks,
                 .comm = connection_from_name(names(where.comm)[static_cast<size_t>(where.comm)]),
                 .cuda = device_of(config, 0).is_cuda(),
                 .timeout = std::chrono::milliseconds(
                     static_cast<int64_t>(config.dist.distributed_timeout_minutes * 60e3)),
                 .place = place});
  std::once_flag told;
  launch.run([&](int rank, const ProcessGroup& world) {
    try {
      RankContext ctx(device_of(config, rank), threads, rank);
      if (place.processes > 1) require_same_settings(config, world);
      world.attach(ctx);
      fn(ctx, world);
    } catch (...) {
      std::call_once(told, [&] { keep_flight_record(config.dist, rank, world, log); });
      throw;
    }
  });
}

}  // namespace megatron
