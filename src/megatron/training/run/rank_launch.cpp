#include "megatron/training/run/rank_launch.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <mutex>

#include "megatron/base/atomic_file.h"
#include "megatron/base/error.h"
#include "megatron/device/cpu_pool.h"
#include "megatron/training/run/same_settings.h"

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

// Gives a context what its rank kept, and keeps that again when the rank leaves.
class DeviceKeeper {
 public:
  DeviceKeeper(RankContext& ctx, KeptDevice* kept) : ctx_(ctx), kept_(kept) {
    if (!kept_ || !kept_->runtime) return;
    ctx_.stream = Stream(kept_->runtime);
    ctx_.allocator = kept_->allocator;
    ctx_.runtime = kept_->runtime;
    ctx_.allocator->reset_peaks();
  }
  ~DeviceKeeper() {
    if (!kept_) return;
    try {
      ctx_.stream.synchronize();  // what was freed is free for the next one's stream, too
      ctx_.allocator->abandon_capture();
      *kept_ = {ctx_.runtime, ctx_.allocator};
    } catch (...) {  // of a device that has failed
      *kept_ = {};
    }
  }
  DeviceKeeper(const DeviceKeeper&) = delete;
  DeviceKeeper& operator=(const DeviceKeeper&) = delete;

 private:
  RankContext& ctx_;
  KeptDevice* kept_;
};

}  // namespace

DeviceType device_type(const Config& config) { return device_of(config, 0).type; }

LaunchPlace launch_place() {
  return find_place([](const char* name) { return std::getenv(name); });
}

LaunchOptions launch_options(const Config& config, const LaunchPlace& place) {
  const RunConfig& where = config.run;
  const auto milliseconds = [](double seconds) {
    return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1e3));
  };
  LaunchOptions options{.ranks = static_cast<int>(where.ranks),
                        .comm = connection_from_name(names(where.comm)[static_cast<size_t>(where.comm)]),
                        .cuda = device_of(config, 0).is_cuda(),
                        .timeout = milliseconds(config.dist.distributed_timeout_minutes * 60),
                        .heartbeat = {},
                        .place = place};
  if (const InProcessRestartConfig& restart = config.inprocess_restart; restart.enabled)
    options.heartbeat = {milliseconds(restart.heartbeat_interval), milliseconds(restart.heartbeat_timeout)};
  return options;
}

void run_generation(Launch& launch, const Config& config, const LaunchPlace& place, const Log& log,
                    const std::function<void(RankContext&, const ProcessGroup& world)>& fn,
                    std::chrono::steady_clock::time_point& failed, std::span<KeptDevice> kept) {
  const auto ranks = static_cast<int>(config.run.ranks);
  const int threads = std::max(1, available_cores() / (ranks * place.processes_here));
  std::once_flag told;
  launch.run([&](int rank, const ProcessGroup& world) {
    try {
      // A process keeps its GPUs, whatever its ranks are called in this generation.
      const int place_of_rank = place.process * ranks + rank % ranks;
      RankContext ctx(device_of(config, place_of_rank), threads, rank);
      const DeviceKeeper keeper(ctx, kept.empty() ? nullptr : &kept[static_cast<size_t>(rank % ranks)]);
      if (place.processes > 1) require_same_settings(config, world);
      world.attach(ctx);
      try {
        fn(ctx, world);
      } catch (const CommAborted&) {
        throw;
      } catch (const std::exception& error) {
        // Before the keeper waits for the stream: that may wait for ranks that wait for this one.
        if (!ctx.device.is_cpu()) world.abort(error.what());
        throw;
      }
    } catch (...) {
      std::call_once(told, [&] {
        // A rank may have had to wait for others' answers, or for its communicators to end.
        const auto now = std::chrono::steady_clock::now();
        failed = std::min(now, launch.noticed().value_or(now));
        keep_flight_record(config.dist, rank, world, log);
      });
      throw;
    }
  });
}

void run_on_ranks(const Config& config, const LaunchPlace& place, const Log& log,
                  const std::function<void(RankContext&, const ProcessGroup& world)>& fn) {
  Launch launch(launch_options(config, place));
  std::chrono::steady_clock::time_point failed;
  run_generation(launch, config, place, log, fn, failed);
}

}  // namespace megatron
