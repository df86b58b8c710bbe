#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>

#include "megatron/autograd/rank_context.h"
#include "megatron/autotune/measure/op_database.h"
#include "megatron/base/atomic_file.h"
#include "megatron/base/error.h"
#include "megatron/base/text_file.h"
#include "megatron/cli/commands/autotune_parts.h"
#include "megatron/cli/flags.h"
#include "megatron/cli/version.h"
#include "megatron/comm/launch.h"
#include "megatron/device/gpu_info.h"
#include "megatron/device/runtime.h"

namespace megatron {
namespace {

using Clock = std::chrono::steady_clock;

struct CommSettings {
  int64_t ranks = 2, repeat = 9;
  std::string database, sizes = "4,64,1024,16384", comm = "auto", device = "auto";
  bool json = false;
};

std::vector<Flag> comm_flags(CommSettings& s) {
  return {
      int_flag("--ranks", "ranks, threads of this process (2)", s.ranks, 2),
      text_flag("--comm", "auto|threads|mpi|tcp|nccl", "how they are connected (auto)", s.comm),
      text_flag("--device", "auto|cpu|cuda", "where they compute (auto: GPUs that are there)", s.device),
      text_flag("--sizes", "LIST", "KiB of the whole tensor (4,64,1024,16384)", s.sizes),
      int_flag("--repeat", "measurements of each (9)", s.repeat, 3),
      text_flag("--database", "FILE", "JSON lines that take the times", s.database),
      switch_flag("--json", "one JSON document", s.json),
  };
}

struct Collective {
  std::string_view name;
  // A rank sends this share of the whole tensor's bytes.
  double (*sent)(double ranks);
  void (*run)(const ProcessGroup& world, const Tensor& a, const Tensor& b);
};

Tensor part_of(const ProcessGroup& world, const Tensor& whole) {
  const int64_t part = whole.numel() / world.size();
  return whole.slice(0, world.rank() * part, (world.rank() + 1) * part);
}

constexpr Collective kCollectives[] = {
    {"all_reduce", [](double n) { return 2 * (n - 1) / n; },
     [](const ProcessGroup& world, const Tensor& a, const Tensor&) { world.all_reduce(a).wait(); }},
    {"all_gather", [](double n) { return (n - 1) / n; },
     [](const ProcessGroup& world, const Tensor& a, const Tensor& b) {
       world.all_gather(part_of(world, a), b).wait();
     }},
    {"reduce_scatter", [](double n) { return (n - 1) / n; },
     [](const ProcessGroup& world, const Tensor& a, const Tensor& b) {
       world.reduce_scatter(a, b.slice(0, 0, b.numel() / world.size())).wait();
     }},
    {"all_to_all", [](double n) { return (n - 1) / n; },
     [](const ProcessGroup& world, const Tensor& a, const Tensor& b) { world.all_to_all(a, b).wait(); }},
    {"ring_exchange", [](double) { return 1.0; },
     [](const ProcessGroup& world, const Tensor& a, const Tensor& b) {
       const int next = (world.rank() + 1) % world.size(),
                 previous = (world.rank() + world.size() - 1) % world.size();
       world.batch_send_recv({{Message::Direction::Send, a, next}, {Message::Direction::Recv, b, previous}})
           .wait();
     }},
};

// A GEMM and a transfer, each alone and both at once. What is hidden is the share of the shorter one that
// costs no time beside the longer one.
struct Interference {
  double gemm_us = 0, comm_us = 0, both_us = 0;
  double hidden() const {
    return std::clamp((gemm_us + comm_us - both_us) / std::max(1e-9, std::min(gemm_us, comm_us)), 0.0, 1.0);
  }
};

double median_us(int64_t repeat, const ProcessGroup& world, const std::function<void()>& work) {
  std::vector<double> us;
  work();
  for (int64_t i = 0; i < repeat; ++i) {
    world.barrier();
    const auto begin = Clock::now();
    work();
    us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
  }
  std::sort(us.begin(), us.end());
  return us[us.size() / 2];
}

// The GEMM of which transfers are measured beside; on a GPU it takes half a millisecond or more.
struct TimedGemm {
  explicit TimedGemm(RankContext& ctx)
      : side(ctx.device.is_cuda() ? 8192 : 512),
        dtype(ctx.device.is_cuda() ? DType::BF16 : DType::F32),
        a(ctx.full({side, side}, dtype, 0.5)),
        b(ctx.full({side, side}, dtype, 0.25)),
        c(ctx.full({side, side}, dtype, 0)) {}
  void launch(RankContext& ctx) const { ctx.kernels->gemm(ctx.kernel_context(), {.a = a, .b = b, .c = c}); }

  int64_t side;
  DType dtype;
  Tensor a, b, c;
};

Interference measure_interference(RankContext& ctx, const ProcessGroup& world, int64_t repeat) {
  const int64_t numel = int64_t{1} << (ctx.device.is_cuda() ? 24 : 20);
  const Tensor sum = ctx.full({numel}, DType::F32, 0);
  const TimedGemm gemm(ctx);
  Interference result;
  result.gemm_us = median_us(repeat, world, [&] {
    gemm.launch(ctx);
    ctx.stream.synchronize();
  });
  result.comm_us = median_us(repeat, world, [&] {
    world.all_reduce(sum).wait();
    ctx.stream.synchronize();
  });
  result.both_us = median_us(repeat, world, [&] {
    auto pending = world.all_reduce(sum);
    gemm.launch(ctx);
    pending.wait();
    ctx.stream.synchronize();
  });
  return result;
}

// Host memory that the device copies to and from by itself.
class PinnedBytes {
 public:
  PinnedBytes(std::shared_ptr<DeviceRuntime> runtime, size_t bytes)
      : runtime_(std::move(runtime)), bytes_(bytes), data_(runtime_->acquire_host_memory(bytes)) {}
  PinnedBytes(const PinnedBytes&) = delete;
  PinnedBytes& operator=(const PinnedBytes&) = delete;
  ~PinnedBytes() { runtime_->release_host_memory(data_, bytes_); }
  void* data() const { return data_; }

 private:
  std::shared_ptr<DeviceRuntime> runtime_;
  size_t bytes_;
  void* data_;
};

// A GEMM beside a copy to pinned memory on a stream of its own, as offloading does it.
Interference measure_copy_interference(RankContext& ctx, int64_t repeat) {
  const ProcessGroup alone = ProcessGroup::self();
  const size_t bytes = size_t{1} << (ctx.device.is_cuda() ? 26 : 22);
  const Tensor source = ctx.full({static_cast<int64_t>(bytes / 4)}, DType::F32, 1);
  const PinnedBytes pinned(ctx.runtime, bytes);
  const Stream copies(ctx.runtime);
  const TimedGemm gemm(ctx);
  const auto copy = [&] {
    ctx.runtime->copy_to_host_async(pinned.data(), source.raw(), bytes, copies.native());
  };
  ctx.stream.synchronize();
  Interference result;
  result.gemm_us = median_us(repeat, alone, [&] {
    gemm.launch(ctx);
    ctx.stream.synchronize();
  });
  result.comm_us = median_us(repeat, alone, [&] {
    copy();
    copies.synchronize();
  });
  result.both_us = median_us(repeat, alone, [&] {
    copy();
    gemm.launch(ctx);
    ctx.stream.synchronize();
    copies.synchronize();
  });
  return result;
}

// GB/s of copies between a device and host memory, pageable and pinned; on the host itself, of its own
// copies.
struct CopyRates {
  int64_t bytes = 0;
  double to_device = 0, to_host = 0, pinned_to_device = 0, pinned_to_host = 0;
};

std::vector<CopyRates> measure_copies(RankContext& ctx, const std::vector<int64_t>& sizes, int64_t repeat) {
  const ProcessGroup alone = ProcessGroup::self();
  std::vector<CopyRates> rates;
  for (const int64_t size : sizes) {
    const int64_t count = std::max<int64_t>(1, size / 4);
    const auto bytes = static_cast<size_t>(4 * count);
    std::vector<float> host(static_cast<size_t>(count), 1.0F);
    const Tensor tensor = ctx.full({count}, DType::F32, 0);
    const PinnedBytes pinned(ctx.runtime, bytes);
    std::memset(pinned.data(), 0, bytes);
    ctx.stream.synchronize();
    const auto rate = [&](const auto& copy) {
      return 1e-3 * static_cast<double>(bytes) / median_us(repeat, alone, [&] {
               copy();
               ctx.stream.synchronize();
             });
    };
    void* stream = ctx.stream.native();
    DeviceRuntime& runtime = *ctx.runtime;
    rates.push_back({size, rate([&] { runtime.copy_from_host(tensor.raw(), host.data(), bytes, stream); }),
                     rate([&] { runtime.copy_to_host(host.data(), tensor.raw(), bytes, stream); }),
                     rate([&] { runtime.copy_from_host_async(tensor.raw(), pinned.data(), bytes, stream); }),
                     rate([&] { runtime.copy_to_host_async(pinned.data(), tensor.raw(), bytes, stream); })});
  }
  return rates;
}

// Latency and rate of a line through times of several sizes, by least squares of relative errors.
struct LinkFit {
  double latency_us = 0, gbs = 0;
};

LinkFit fit_link(const std::vector<std::pair<double, double>>& points) {
  double s = 0, sx = 0, sxx = 0, sy = 0, sxy = 0;
  for (const auto& [bytes, us] : points) {
    const double weight = 1 / (us * us);
    s += weight;
    sx += weight * bytes;
    sxx += weight * bytes * bytes;
    sy += weight * us;
    sxy += weight * bytes * us;
  }
  const double det = s * sxx - sx * sx;
  if (det <= 0) return {};
  const double slope = std::max(1e-12, (s * sxy - sx * sy) / det);
  return {std::max(0.0, (sy - slope * sx) / s), 1e-3 / slope};
}

}  // namespace

std::string autotune_profile_comm_help() {
  CommSettings unused;
  return "usage: megatron autotune profile-comm [options]\n"
         "\n"
         "Times collectives of several sizes among ranks, copies between host and device, and a GEMM beside\n"
         "an all-reduce; tells latency and rate of each, and writes collectives to a database.\n\n" +
         flags_help(comm_flags(unused));
}

int run_autotune_profile_comm(Invocation& invocation) {
  CommSettings s;
  const std::vector<std::string> words = parse_flags("autotune profile-comm", invocation.args, comm_flags(s));
  if (!words.empty())
    throw UsageError(fmt::format("autotune profile-comm: cannot make sense of '{}'", words[0]));
  std::vector<int64_t> sizes;
  for (const std::string_view word : comma_separated(s.sizes)) {
    sizes.push_back(parse_int("autotune profile-comm", "--sizes", word) * 1024);
    if (sizes.back() <= 0 || sizes.back() > int64_t{1} << 34)
      throw UsageError("autotune profile-comm: --sizes takes KiB from 1 to 16777216");
  }
  if (s.ranks > 256)
    throw UsageError(fmt::format("autotune profile-comm: --ranks needs 2 to 256 (got {})", s.ranks));
  if (s.device != "auto" && s.device != "cpu" && s.device != "cuda")
    throw UsageError(
        fmt::format("autotune profile-comm: --device takes auto, cpu or cuda (got {})", s.device));
  const int gpus = s.device == "cpu" ? 0 : cuda_device_count();
  if (s.device == "cuda" && gpus == 0)
    throw ConfigError("autotune profile-comm: --device cuda: no usable GPU is there; leave it out");
  const auto device_of = [&](int rank) {
    return gpus > 0 ? Device{DeviceType::Cuda, static_cast<int8_t>(rank % gpus)} : kCpu;
  };
  autotune::OpDatabase database;
  Interference interference;
  Launch launch({.ranks = static_cast<int>(s.ranks),
                 .comm = connection_from_name(s.comm),
                 .cuda = gpus > 0,
                 .heartbeat = {},
                 .place = find_place([](const char* name) { return std::getenv(name); })});
  const bool shared = gpus > 0 && launch.world_size() > gpus;
  const std::string how =
      shared ? fmt::format("{} ranks on {}, which move memory themselves", launch.world_size(),
                           gpus == 1 ? "one GPU" : fmt::format("{} GPUs", gpus))
             : launch.how();
  launch.run([&](int rank, const ProcessGroup& world) {
    RankContext ctx(device_of(rank), 1, rank);
    world.attach(ctx);
    for (const Collective& one : kCollectives)
      for (const int64_t bytes : sizes) {
        const int64_t numel = std::max<int64_t>(1, bytes / 4 / world.size()) * world.size();
        const Tensor a = ctx.full({numel}, DType::F32, 1), b = ctx.full({numel}, DType::F32, 0);
        const int64_t calls = std::clamp<int64_t>((int64_t{1} << 24) / bytes, 1, 50);
        one.run(world, a, b);
        ctx.stream.synchronize();
        for (int64_t i = 0; i < s.repeat; ++i) {
          world.barrier();
          const auto begin = Clock::now();
          for (int64_t call = 0; call < calls; ++call) one.run(world, a, b);
          ctx.stream.synchronize();
          const double us = std::chrono::duration<double, std::micro>(Clock::now() - begin).count() /
                            static_cast<double>(calls);
          if (rank == 0)
            database.add(fmt::format("{} ranks={} bytes={}", one.name, world.size(), bytes), one.name, "comm",
                         0, one.sent(world.size()) * static_cast<double>(bytes), us);
        }
        world.barrier();
      }
    const Interference own = measure_interference(ctx, world, s.repeat);
    if (rank == 0) interference = own;
    world.detach();
  });
  RankContext device(device_of(0), 1, 0);
  const std::vector<CopyRates> copies = measure_copies(device, sizes, s.repeat);
  const Interference beside_copy = measure_copy_interference(device, s.repeat);
  Json document = Json::object();
  document["connection"] = how;
  Json& list = document["collectives"] = Json::array();
  if (!s.json)
    fmt::print(invocation.out, "{}\n\n{:<16}{:>12}{:>12}{:>12}{:>12}{:>14}\n", how, "collective", "KiB",
               "median us", "p10", "p90", "GB/s sent");
  for (const Collective& one : kCollectives) {
    std::vector<std::pair<double, double>> points;
    Json entry = Json::object();
    entry["name"] = one.name;
    Json& rows = entry["sizes"] = Json::array();
    for (const int64_t bytes : sizes) {
      const autotune::OpSample& sample =
          database.samples().at(fmt::format("{} ranks={} bytes={}", one.name, s.ranks, bytes));
      points.emplace_back(sample.bytes, sample.median());
      Json row = Json::object();
      row["bytes"] = bytes;
      row["us"] = sample.median();
      rows.push_back(std::move(row));
      if (!s.json)
        fmt::print(invocation.out, "{:<16}{:>12}{:>12.1f}{:>12.1f}{:>12.1f}{:>14.3f}\n", one.name,
                   bytes / 1024, sample.median(), sample.quantile(0.1), sample.quantile(0.9),
                   sample.bytes / sample.median() / 1e3);
    }
    const LinkFit fit = fit_link(points);
    entry["latency_us"] = fit.latency_us;
    entry["gb_per_s"] = fit.gbs;
    list.push_back(std::move(entry));
    if (!s.json) fmt::print(invocation.out, "  {:.1f} us and {:.2f} GB/s\n", fit.latency_us, fit.gbs);
  }
  const char* where = device.device.is_cuda() ? "GPU" : "host";
  Json& rates = document["copies"] = Json::array();
  for (const CopyRates& one : copies) {
    Json row = Json::object();
    row["bytes"] = one.bytes;
    row["to_device_gb_per_s"] = one.to_device;
    row["to_host_gb_per_s"] = one.to_host;
    row["pinned_to_device_gb_per_s"] = one.pinned_to_device;
    row["pinned_to_host_gb_per_s"] = one.pinned_to_host;
    rates.push_back(std::move(row));
  }
  if (!s.json) {
    fmt::print(invocation.out, "\ncopies, GB/s{:>16}{:>12}{:>12}{:>12}{:>12}\n", "KiB",
               fmt::format("to the {}", where), "back", "pinned to", "back");
    for (const CopyRates& one : copies)
      fmt::print(invocation.out, "{:>28}{:>12.3f}{:>12.3f}{:>12.3f}{:>12.3f}\n", one.bytes / 1024,
                 one.to_device, one.to_host, one.pinned_to_device, one.pinned_to_host);
    fmt::print(invocation.out, "\n");
  }
  const auto tell = [&](const char* key, const char* what, const Interference& one) {
    Json& both = document[key] = Json::object();
    both["gemm_us"] = one.gemm_us;
    both[key == std::string_view("interference") ? "all_reduce_us" : "copy_us"] = one.comm_us;
    both["both_us"] = one.both_us;
    both["hidden"] = one.hidden();
    if (!s.json)
      fmt::print(invocation.out,
                 "a GEMM of {:.0f} us and {} of {:.0f} us take {:.0f} us at once: {:.0f} % hidden\n",
                 one.gemm_us, what, one.comm_us, one.both_us, 100 * one.hidden());
  };
  tell("interference", "an all-reduce", interference);
  if (shared && !s.json)
    fmt::print(invocation.out, "  of ranks that share a GPU, whose GEMMs wait for each other\n");
  tell("copy_interference", "a copy to the host", beside_copy);
  if (!s.database.empty()) {
    autotune::OpDatabase all;
    if (std::filesystem::exists(s.database))
      all = autotune::OpDatabase::parse(read_text_file(s.database), s.database);
    if (all.device.empty()) all.device = gpus > 0 ? gpu_name(0) : "CPU";
    all.library = std::string(build_info().version);
    all.merge(database);
    write_file_atomically(s.database, all.text());
  }
  if (s.json) fmt::print(invocation.out, "{}\n", document.dump(1));
  return 0;
}

}  // namespace megatron
