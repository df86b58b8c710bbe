#include "megatron/training/run/rank_launch.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <mutex>

#include "megatron/base/atomic_file.h"
#include "megatron/base/error.h"
#include "megatron/base/hash.h"
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

// Sections that decide what is computed; where ranks live, what they print and where files are may differ.
constexpr std::array<std::string_view, 9> kCommon{"model",     "dist", "train", "validation", "optimizer",
                                                  "scheduler", "ddp",  "rng",   "dataset"};

bool is_number(const std::string& word) {
  double value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  return error == std::errc() && end == word.data() + word.size();
}

// Of the data, where files are and how they are read; how many they are, and their weights, stay.
void forget_places(DatasetConfig& data) {
  for (auto* words : {&data.data_path, &data.train_data_path, &data.valid_data_path, &data.test_data_path})
    for (std::string& word : *words)
      if (!is_number(word)) word.clear();
  for (std::string* path : {&data.data_args_path, &data.per_split_data_args_path, &data.replay,
                            &data.dataset_root, &data.packed_metadata})
    if (!path->empty()) *path = "somewhere";
  const DatasetConfig usual;
  data.path_to_cache = usual.path_to_cache;
  data.num_workers = usual.num_workers;
  data.num_dataset_builder_threads = usual.num_dataset_builder_threads;
  data.mmap_bin_files = usual.mmap_bin_files;
}

// Processes that were given other settings would compute something that nobody asked for, or wait for each
// other.
void require_same_settings(const Config& config, const ProcessGroup& world) {
  Config compared = config;
  compared.dist.flight_recorder_dump_path.clear();
  forget_places(compared.dataset);
  const Json settings = compared.to_json();
  std::vector<uint64_t> own;
  for (const std::string_view section : kCommon)
    own.push_back(hash_text(settings.at(std::string(section)).dump()));
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
