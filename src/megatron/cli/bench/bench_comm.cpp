#include "megatron/cli/bench/bench_parts.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <limits>

#include "megatron/base/error.h"
#include "megatron/base/json.h"
#include "megatron/cli/bench/bench_ceilings.h"
#include "megatron/cli/flags.h"
#include "megatron/comm/launch.h"

namespace megatron {
namespace {

struct Settings {
  int64_t ranks = 0, repeat = 5;
  std::string filter, sizes = "4KiB,64KiB,1MiB,16MiB,64MiB", dtype = "fp32", comm = "auto";
  bool json = false;
};

std::vector<Flag> flags(Settings& s) {
  return {
      int_flag("--ranks", "ranks, threads of this process (2), or of each that mpirun started (1)", s.ranks),
      text_flag("--comm", "auto|threads|mpi|tcp", "how they are connected (auto)", s.comm),
      text_flag("--sizes", "LIST", "bytes of the whole tensor (4KiB,64KiB,1MiB,16MiB,64MiB)", s.sizes),
      text_flag("--dtype", "TYPE", "of its elements (fp32)", s.dtype),
      text_flag("--filter", "TEXT", "only collectives with this in their name", s.filter),
      int_flag("--repeat", "measurements, of which the shortest counts (5)", s.repeat, 1),
      switch_flag("--json", "one JSON document", s.json),
  };
}

// A collective on a tensor of n elements, the larger of what goes in and what comes out.
struct Case {
  std::string_view name;
  // What must be read and written by all ranks together, in tensors.
  double (*tensors_moved)(double ranks);
  void (*run)(const ProcessGroup& world, const Tensor& a, const Tensor& b);
};

Tensor own_part(const ProcessGroup& world, const Tensor& whole) {
  int64_t part = whole.numel() / world.size();
  return whole.slice(0, world.rank() * part, (world.rank() + 1) * part);
}

constexpr Case kCases[] = {
    {"barrier", [](double) { return 0.0; },
     [](const ProcessGroup& world, const Tensor&, const Tensor&) { world.barrier(); }},
    {"all_reduce", [](double ranks) { return 2 * ranks; },
     [](const ProcessGroup& world, const Tensor& a, const Tensor&) { world.all_reduce(a).wait(); }},
    {"reduce_scatter", [](double ranks) { return ranks + 1; },
     [](const ProcessGroup& world, const Tensor& a, const Tensor& b) {
       world.reduce_scatter(a, b.slice(0, 0, b.numel() / world.size())).wait();
     }},
    {"all_gather", [](double ranks) { return 2 * ranks; },
     [](const ProcessGroup& world, const Tensor& a, const Tensor& b) {
       world.all_gather(own_part(world, a), b).wait();
     }},
    {"all_to_all", [](double ranks) { return 2 * ranks; },
     [](const ProcessGroup& world, const Tensor& a, const Tensor& b) { world.all_to_all(a, b).wait(); }},
    {"broadcast", [](double ranks) { return 2 * (ranks - 1); },
     [](const ProcessGroup& world, const Tensor& a, const Tensor&) { world.broadcast(a, 0).wait(); }},
    {"ring_exchange", [](double ranks) { return 2 * ranks; },
     [](const ProcessGroup& world, const Tensor& a, const Tensor& b) {
       int next = (world.rank() + 1) % world.size(),
           previous = (world.rank() + world.size() - 1) % world.size();
       world.batch_send_recv({{Message::Direction::Send, a, next}, {Message::Direction::Recv, b, previous}})
           .wait();
     }},
};

struct Row {
  std::string_view collective;
  int64_t bytes = 0;
  double seconds = 0, moved = 0, ceiling_seconds = 0;
  double percent() const { return 100 * ceiling_seconds / seconds; }
};

std::vector<int64_t> parse_sizes(std::string_view list) {
  std::vector<int64_t> sizes;
  for (std::string_view word : comma_separated(list)) {
    int64_t unit = 1;
    for (auto [suffix, bytes] : {std::pair{"KiB", int64_t{1} << 10}, {"MiB", int64_t{1} << 20}})
      if (word.ends_with(suffix)) {
        word.remove_suffix(3);
        unit = bytes;
      }
    sizes.push_back(unit * parse_int("bench comm", "--sizes", word));
    if (sizes.back() <= 0) throw UsageError("bench comm: --sizes takes positive numbers of bytes");
  }
  return sizes;
}

std::string size_text(int64_t bytes) {
  if (bytes >= 1 << 20 && bytes % (1 << 20) == 0) return fmt::format("{} MiB", bytes >> 20);
  if (bytes >= 1 << 10 && bytes % (1 << 10) == 0) return fmt::format("{} KiB", bytes >> 10);
  return fmt::format("{} B", bytes);
}

// Seconds per call of a collective, and those that a copy of as many bytes by every core takes: the shortest
// of `repeat` measurements of each in turn, so that both meet the same moods of the machine.
Row measure(RankContext& ctx, const ProcessGroup& world, const Case& one, const Tensor& a, const Tensor& b,
            int64_t repeat) {
  using Clock = std::chrono::steady_clock;
  constexpr double worth_timing = 256 << 20;  // bytes that make a measurement long enough for the clock
  Row row{.collective = one.name, .bytes = static_cast<int64_t>(a.bytes())};
  row.moved = one.tensors_moved(world.size()) * static_cast<double>(a.bytes());
  auto calls = static_cast<int64_t>(std::clamp(worth_timing / std::max(row.moved, 1.0), 1.0, 200.0));
  row.seconds = row.ceiling_seconds = std::numeric_limits<double>::infinity();
  one.run(world, a, b);
  for (int64_t i = 0; i < repeat; ++i) {
    world.barrier();
    auto begin = Clock::now();
    for (int64_t call = 0; call < calls; ++call) one.run(world, a, b);
    world.barrier();
    std::chrono::duration<double> took = Clock::now() - begin;
    row.seconds = std::min(row.seconds, took.count() / static_cast<double>(calls));
    if (world.rank() == 0)  // the others sleep at the next barrier
      row.ceiling_seconds = std::min(row.ceiling_seconds, row.moved / Ceilings(ctx, 1).copy_rate(row.moved));
  }
  return row;
}

std::vector<Row> measure_all(const Settings& settings, Launch& launch) {
  const std::vector<int64_t> sizes = parse_sizes(settings.sizes);
  const DType dtype = dtype_from_name(settings.dtype);
  const auto chosen = [&](const Case& one) {
    return one.name.find(settings.filter) != std::string_view::npos;
  };
  if (std::none_of(std::begin(kCases), std::end(kCases), chosen))
    throw UsageError(fmt::format("bench comm: no collective has '{}' in its name", settings.filter));
  std::vector<Row> rows;
  launch.run([&](int rank, const ProcessGroup& world) {
    RankContext ctx(kCpu, rank == 0 ? available_cores() : 1, rank);
    for (const Case& one : kCases) {
      if (!chosen(one)) continue;
      for (int64_t size : sizes) {
        int64_t each = size / static_cast<int64_t>(size_of(dtype)) / world.size();
        Shape shape = {std::max<int64_t>(each, 1) * world.size()};
        Tensor a = ctx.full(shape, dtype, 0), b = ctx.full(shape, dtype, 0);
        Row row = measure(ctx, world, one, a, b, settings.repeat);
        if (rank == 0) rows.push_back(row);
        if (row.moved == 0) break;  // a barrier has no size
      }
    }
  });
  return rows;
}

void print(std::FILE* out, const Settings& settings, const Launch& launch, std::span<const Row> rows) {
  fmt::print(out, "{}, {}\n\n", launch.how(), settings.dtype);
  fmt::print(out, "{:<14}  {:>8}  {:>10}  {:>10}  {:>10}  {:>9}\n", "collective", "tensor", "µs", "GB/s",
             "copy GB/s", "of copy");
  for (const Row& row : rows)
    if (row.moved == 0)
      fmt::print(out, "{:<14}  {:>8}  {:>9.1f}\n", row.collective, "", row.seconds * 1e6);
    else
      fmt::print(out, "{:<14}  {:>8}  {:>9.1f}  {:>10.1f}  {:>10.1f}  {:>7.0f} %\n", row.collective,
                 size_text(row.bytes), row.seconds * 1e6, row.moved / row.seconds / 1e9,
                 row.moved / row.ceiling_seconds / 1e9, row.percent());
}

Json to_json(const Settings& settings, const Launch& launch, std::span<const Row> rows) {
  Json json = Json::object();
  json["ranks"] = launch.world_size();
  json["how"] = launch.how();
  json["dtype"] = settings.dtype;
  json["collectives"] = Json::array();
  for (const Row& row : rows) {
    Json entry = Json::object();
    entry["collective"] = row.collective;
    entry["bytes"] = row.moved == 0 ? 0 : row.bytes;
    entry["us"] = row.seconds * 1e6;
    if (row.moved > 0) {
      entry["gbs"] = row.moved / row.seconds / 1e9;
      entry["copy_gbs"] = row.moved / row.ceiling_seconds / 1e9;
      entry["percent"] = row.percent();
    }
    json["collectives"].push_back(std::move(entry));
  }
  return json;
}

}  // namespace

std::string bench_comm_help() {
  Settings unused;
  return "usage: megatron bench comm [options]\n"
         "\n"
         "Times every collective. GB/s counts what all ranks together must read and write at least: twice "
         "the "
         "tensor per\n"
         "rank for an all-reduce or an all-gather. 'of copy' compares that with every core copying as many "
         "bytes.\n"
         "\n" +
         flags_help(flags(unused));
}

int bench_comm(Invocation& invocation) {
  Settings settings;
  auto words = parse_flags("bench comm", invocation.args, flags(settings));
  if (!words.empty()) throw UsageError(fmt::format("bench comm: '{}' is no option", words[0]));
  const LaunchPlace place = find_place([](const char* name) { return std::getenv(name); });
  if (settings.ranks == 0) settings.ranks = place.processes > 1 ? 1 : 2;
  Launch launch({.ranks = static_cast<int>(settings.ranks),
                 .comm = connection_from_name(settings.comm),
                 .place = place});
  std::vector<Row> rows = measure_all(settings, launch);
  if (!launch.is_first()) return 0;
  if (settings.json)
    fmt::print(invocation.out, "{}\n", to_json(settings, launch, rows).dump(2));
  else
    print(invocation.out, settings, launch, rows);
  return 0;
}

}  // namespace megatron
