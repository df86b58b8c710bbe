#include <algorithm>
#include <chrono>
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
#include "megatron/device/runtime.h"

namespace megatron {
namespace {

using Clock = std::chrono::steady_clock;

struct CommSettings {
  int64_t ranks = 2, repeat = 9;
  std::string database, sizes = "4,64,1024,16384", comm = "auto";
  bool json = false;
};

std::vector<Flag> comm_flags(CommSettings& s) {
  return {
      int_flag("--ranks", "ranks, threads of this process (2)", s.ranks, 2),
      text_flag("--comm", "auto|threads|mpi|tcp", "how they are connected (auto)", s.comm),
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

// A GEMM and an all-reduce, each alone and both at once. What is hidden is the share of the shorter one that
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

Interference measure_interference(RankContext& ctx, const ProcessGroup& world, int64_t repeat) {
  constexpr int64_t side = 512, numel = int64_t{1} << 20;
  const Tensor a = ctx.full({side, side}, DType::F32, 0.5), b = ctx.full({side, side}, DType::F32, 0.25),
               c = ctx.full({side, side}, DType::F32, 0), sum = ctx.full({numel}, DType::F32, 0);
  const auto gemm = [&] {
    ctx.kernels->gemm(ctx.kernel_context(), {.a = a, .b = b, .c = c});
    ctx.stream.synchronize();
  };
  Interference result;
  result.gemm_us = median_us(repeat, world, gemm);
  result.comm_us = median_us(repeat, world, [&] { world.all_reduce(sum).wait(); });
  result.both_us = median_us(repeat, world, [&] {
    auto pending = world.all_reduce(sum);
    gemm();
    pending.wait();
  });
  return result;
}

// GB/s of copies from pageable host memory to a device and back; on the host itself, of its own copies.
struct CopyRates {
  int64_t bytes = 0;
  double to_device = 0, to_host = 0;
};

std::vector<CopyRates> measure_copies(RankContext& ctx, const std::vector<int64_t>& sizes, int64_t repeat) {
  std::vector<CopyRates> rates;
  for (const int64_t bytes : sizes) {
    const std::vector<float> host(static_cast<size_t>(std::max<int64_t>(1, bytes / 4)), 1.0F);
    const auto count = static_cast<int64_t>(host.size());
    std::vector<double> there, back;
    for (int64_t i = 0; i <= repeat; ++i) {
      ctx.stream.synchronize();
      const auto begin = Clock::now();
      const Tensor tensor = ctx.from_vector(host, {count});
      ctx.stream.synchronize();
      const auto middle = Clock::now();
      const std::vector<float> copy = ctx.to_vector<float>(tensor);
      const auto end = Clock::now();
      if (i == 0) continue;  // the first one allocates
      there.push_back(std::chrono::duration<double>(middle - begin).count());
      back.push_back(std::chrono::duration<double>(end - middle).count());
    }
    std::sort(there.begin(), there.end());
    std::sort(back.begin(), back.end());
    const double size = 4.0 * static_cast<double>(count);
    rates.push_back({bytes, 1e-9 * size / there[there.size() / 2], 1e-9 * size / back[back.size() / 2]});
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
  autotune::OpDatabase database;
  Interference interference;
  Launch launch({.ranks = static_cast<int>(s.ranks),
                 .comm = connection_from_name(s.comm),
                 .heartbeat = {},
                 .place = find_place([](const char* name) { return std::getenv(name); })});
  const std::string how = launch.how();
  launch.run([&](int rank, const ProcessGroup& world) {
    RankContext ctx(kCpu, 1, rank);
    world.attach(ctx);
    for (const Collective& one : kCollectives)
      for (const int64_t bytes : sizes) {
        const int64_t numel = std::max<int64_t>(1, bytes / 4 / world.size()) * world.size();
        const Tensor a = ctx.full({numel}, DType::F32, 1), b = ctx.full({numel}, DType::F32, 0);
        const int64_t calls = std::clamp<int64_t>((int64_t{1} << 24) / bytes, 1, 50);
        one.run(world, a, b);
        for (int64_t i = 0; i < s.repeat; ++i) {
          world.barrier();
          const auto begin = Clock::now();
          for (int64_t call = 0; call < calls; ++call) one.run(world, a, b);
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
  RankContext device(cuda_device_count() > 0 ? Device{DeviceType::Cuda, 0} : kCpu, 1, 0);
  const std::vector<CopyRates> copies = measure_copies(device, sizes, s.repeat);
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
    rates.push_back(std::move(row));
    if (!s.json)
      fmt::print(invocation.out, "{:<16}{:>12}{:>14.3f} GB/s to the {}{:>10.3f} GB/s back\n", "copy",
                 one.bytes / 1024, one.to_device, where, one.to_host);
  }
  Json& both = document["interference"] = Json::object();
  both["gemm_us"] = interference.gemm_us;
  both["all_reduce_us"] = interference.comm_us;
  both["both_us"] = interference.both_us;
  both["hidden"] = interference.hidden();
  if (!s.json)
    fmt::print(invocation.out,
               "a GEMM of {:.0f} us and an all-reduce of {:.0f} us take {:.0f} us at once: {:.0f} % hidden\n",
               interference.gemm_us, interference.comm_us, interference.both_us, 100 * interference.hidden());
  if (!s.database.empty()) {
    autotune::OpDatabase all;
    if (std::filesystem::exists(s.database))
      all = autotune::OpDatabase::parse(read_text_file(s.database), s.database);
    if (all.device.empty()) all.device = "CPU";
    all.library = std::string(build_info().version);
    all.merge(database);
    write_file_atomically(s.database, all.text());
  }
  if (s.json) fmt::print(invocation.out, "{}\n", document.dump(1));
  return 0;
}

}  // namespace megatron
