#include "megatron/cli/bench/bench_parts.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <numeric>

#include "megatron/base/counted.h"
#include "megatron/base/error.h"
#include "megatron/base/json.h"
#include "megatron/base/median.h"
#include "megatron/base/seconds_since.h"
#include "megatron/base/writable_folder.h"
#include "megatron/checkpoint/save_plan.h"
#include "megatron/cli/bench/bench_cases.h"
#include "megatron/cli/bench/disk_ceilings.h"
#include "megatron/cli/flags.h"
#include "megatron/device/host_memory.h"
#include "megatron/training/log/timers.h"
#include "megatron/training/run/run.h"
#include "megatron/training/setup/checkpoint_tensors.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

struct Settings {
  BenchRun run{.steps = 10, .warmup = 3};
  int64_t saves = 2, batch = 0;
  std::string folder = "bench-ckpt";
  bool json = false, local = false;
};

std::vector<Flag> flags(Settings& s) {
  return {
      text_flag("--dir", "DIR", "a new folder on the disk to measure; removed at the end (bench-ckpt)",
                s.folder),
      int_flag("--saves", "measured saves of each kind, and loads (2)", s.saves, 1),
      int_flag("--steps", "undisturbed steps before each save (10)", s.run.steps, 2),
      int_flag("--batch", "sequences of a step (the case's)", s.batch, 1),
      int_flag("--warmup", "steps before them (3)", s.run.warmup, 1),
      int_flag("--tensor-model-parallel-size", "ranks that share each layer (1)", s.run.tensor_parallel, 1),
      int_flag("--pipeline-model-parallel-size", "ranks that share the layers among them (1)",
               s.run.pipeline_parallel, 1),
      int_flag("--data-parallel-size", "ranks that share the batch (1)", s.run.data_parallel, 1),
      text_flag("--device", "cpu|cuda", "where to compute (cuda where a GPU is there)", s.run.device),
      text_flag("--precision", "fp32|bf16|fp8", "of weights and activations (fp32 on the CPU, bf16 on a GPU)",
                s.run.precision),
      switch_flag("--local", "checkpoints on local disks instead, copied to another rank", s.local),
      switch_flag("--json", "one JSON document", s.json),
  };
}

// Refuses counts that would take days.
void check_limits(const Settings& s) {
  constexpr int64_t kMax = 1000;
  for (const auto& [name, value] : {std::pair{"--saves", s.saves},
                                    {"--steps", s.run.steps},
                                    {"--warmup", s.run.warmup},
                                    {"--batch", s.batch}})
    if (value > kMax)
      throw UsageError(fmt::format("bench ckpt: {} must be at most {}, not {}", name, kMax, value));
}

double mean(const std::vector<double>& values) {
  return values.empty()
             ? 0
             : std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// Bytes that a rank's snapshot brings to the host: what belongs to several tensors once.
double snapshot_bytes(RankTrainer& trainer) {
  std::map<const void*, size_t> bytes;
  for (const ShardedTensor& tensor : checkpoint_tensors(trainer)) {
    if (tensor.tensor) bytes[tensor.tensor.raw()] = tensor.tensor.bytes();
    if (tensor.packed)
      for (const Tensor& part : tensor.packed->parts) bytes[part.raw()] = part.bytes();
  }
  double sum = 0;
  for (const auto& [address, count] : bytes) sum += static_cast<double>(count);
  return sum;
}

// Bytes a second from the device to pinned host memory; 0 where the device is the host.
double copy_rate(RankContext& ctx) {
  if (ctx.device.is_cpu()) return 0;
  constexpr int64_t size = int64_t{256} << 20, repeats = 4;
  const auto pinned = make_host_allocator(ctx.runtime);
  const Tensor host = Tensor::empty(pinned, {size}, DType::U8), device = ctx.zeros({size}, DType::U8);
  Clock::time_point start;
  for (int64_t i = 0; i <= repeats; ++i) {  // the first one warms up
    if (i == 1) start = Clock::now();
    ctx.runtime->copy_to_host_async(host.raw(), device.raw(), size, ctx.stream.native());
    ctx.stream.synchronize();
  }
  return static_cast<double>(size * repeats) / seconds_since(start);
}

// Asks for a save after so many undisturbed steps, for the next one when that is written, and in the end for
// the run's. It times the iterations of rank 0 with what lies between them. The end of a run is a synchronous
// save, whatever the others were.
class SaveTimer final : public Callback {
 public:
  SaveTimer(const Settings& settings, int64_t saves, bool async, Log log)
      : settings_(settings), saves_(saves), async_(async), log_(std::move(log)) {}

  void on(RunEvent event, RunView& view) override {
    if (!view.is_first_rank()) return;
    if (event == RunEvent::train_start) start(view);
    if (event == RunEvent::save) calls.push_back(seconds_since(last_));
    if (event != RunEvent::step_end) return;
    if (!failure_.empty()) throw Error("bench ckpt: " + failure_);
    if (view.report->iteration > settings_.run.warmup) add(seconds_since(last_));
    last_ = Clock::now();
    if (view.report->iteration < settings_.run.warmup || writing_ || calm_ < settings_.run.steps) return;
    calm_ = 0;
    begun_ = last_;
    if (static_cast<int64_t>(calls.size()) < saves_) {
      asked_ = writing_ = behind_save_ = true;
      steps_ = 0;
      view.save();
    } else {
      asked_ = ending_ = true;
      view.stop();
    }
  }
  void on_message(std::string_view line) override {
    if (line.find("is not saved") != line.npos) failure_ = line;
    if (!line.starts_with("saved ")) return;
    if (!std::exchange(asked_, false)) return;  // that of a run which a signal ends
    if (ending_ || !async_) {
      whole.push_back(seconds_since(begun_));
      log_.info("synchronous save: {:.2f} s", whole.back());
    } else {
      log_.info("asynchronous save {} of {}: {:.1f} ms in the call, on the disk after {:.2f} s and {} steps",
                calls.size(), saves_, calls.back() * 1e3, seconds_since(begun_), steps_);
    }
    written_ = true;
  }

  std::vector<double> whole;    // synchronous saves
  std::vector<double> calls;    // a save, until the run may go on
  std::vector<double> first;    // the step behind a save, with the save itself
  std::vector<double> during;   // further steps until the save is published, with that
  std::vector<double> between;  // steps with nothing beside them
  double copied_bytes = 0, device_to_host_rate = 0;

 private:
  void start(RunView& view) {
    last_ = Clock::now();
    copied_bytes = snapshot_bytes(view.trainer);
    device_to_host_rate = copy_rate(view.ctx);
    double bytes = 0;
    for (const ShardDescription& shard : describe(checkpoint_tensors(view.trainer)))
      bytes +=
          static_cast<double>(shard.shard.local_shape.numel()) * static_cast<double>(size_of(shard.dtype));
    // Two checkpoints are there for a moment.
    const double needed = 2.1 * bytes * static_cast<double>(settings_.run.ranks()),
                 there = static_cast<double>(fs::space(settings_.folder).available);
    if (needed > there)
      throw ConfigError(fmt::format(
          "bench ckpt: --dir {}: {:.1f} GB are free there, {:.1f} GB are needed; name a folder on "
          "another disk, or a smaller case",
          settings_.folder, there / 1e9, needed / 1e9));
  }
  void add(double seconds) {
    ++steps_;
    if (std::exchange(behind_save_, false)) {
      if (calls.size() > 1) first.push_back(seconds);  // the first save takes its memory
    } else if (writing_) {
      during.push_back(seconds);
    } else {
      between.push_back(seconds);
      ++calm_;
    }
    if (std::exchange(written_, false)) writing_ = false;
  }

  const Settings& settings_;
  int64_t saves_;
  bool async_;
  Log log_;
  Clock::time_point last_, begun_;
  int64_t calm_ = 0, steps_ = 0;
  bool writing_ = false, written_ = false, behind_save_ = false, ending_ = false;
  bool asked_ = false;  // for a save that is not told of yet
  std::string failure_;
};

// How long loading took, by the slowest rank, and the memory that it held beyond the model's.
class LoadTimer final : public Callback {
 public:
  void on(RunEvent event, RunView& view) override {
    if (event != RunEvent::train_start || !view.is_first_rank()) return;
    const auto& names = view.timers->timers;
    for (size_t i = 0; i < names.size(); ++i)
      if (names[i].name == "load-checkpoint")
        for (const std::vector<double>& rank : view.timers->seconds) seconds = std::max(seconds, rank[i]);
    memory = view.ctx.allocator->statistics();
  }

  double seconds = 0;
  MemoryStatistics memory;
};

size_t bytes_in(const std::string& folder) {
  size_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) bytes += entry.file_size();
  return bytes;
}

RunSpec spec_of(const Invocation& invocation, const TrainCase& chosen, const Settings& settings) {
  RunSpec spec;
  spec.sources = sources_of(chosen, settings.run);
  spec.log = invocation.log;
  spec.out = nullptr;
  spec.data = [](const Config& config) { return RunData{.train = random_rows(config)}; };
  return spec;
}

void run_to_end(const RunSpec& spec) {
  const RunEnd end = run(spec);
  if (end.reason != RunEnd::Reason::finished && end.reason != RunEnd::Reason::requested)
    throw Error("bench ckpt: " + end.text());
}

std::shared_ptr<SaveTimer> time_saves(const Invocation& invocation, const TrainCase& chosen,
                                      const Settings& settings, int64_t saves, bool async) {
  RunSpec spec = spec_of(invocation, chosen, settings);
  auto& overrides = spec.sources.overrides;
  overrides.push_back("train.train_iters=1000000");  // the timer ends it
  overrides.push_back("checkpoint.save=" + settings.folder);
  overrides.push_back("checkpoint.most_recent_k=1");
  overrides.push_back(fmt::format("checkpoint.async_save={}", async));
  auto timer = std::make_shared<SaveTimer>(settings, saves, async, invocation.log);
  spec.callbacks = {timer};
  run_to_end(spec);
  return timer;
}

std::shared_ptr<LoadTimer> time_load(const Invocation& invocation, const TrainCase& chosen,
                                     const Settings& settings) {
  RunSpec spec = spec_of(invocation, chosen, settings);
  spec.sources.overrides.push_back("checkpoint.load=" + settings.folder);
  spec.sources.overrides.push_back("validation.skip_train=true");
  spec.sources.overrides.push_back("logger.timing_log_level=1");
  auto timer = std::make_shared<LoadTimer>();
  spec.callbacks = {timer};
  drop_cached(settings.folder);
  run_to_end(spec);
  return timer;
}

// Times checkpoints on local disks, which are saved after every step.
class LocalTimer final : public Callback {
 public:
  void on(RunEvent event, RunView& view) override {
    if (event == RunEvent::step_end && view.is_first_rank()) begun_ = Clock::now();
  }
  void on_message(std::string_view line) override {
    if (line.starts_with("saved iteration ")) saves.push_back(seconds_since(begun_));
    if (line.starts_with("loaded the local checkpoint")) loaded = true;
    if (line.starts_with("the run goes on: ")) throw Error("bench ckpt: " + std::string(line));
  }

  std::vector<double> saves;
  bool loaded = false;

 private:
  Clock::time_point begun_;
};

// Every rank writes its share, and that of another one where there are several. The first save, which takes
// its memory, is not measured.
int bench_local(Invocation& invocation, const TrainCase& chosen, const Settings& settings) {
  const std::string save = settings.folder + "/c", disk = settings.folder + "/disk";
  const int64_t copies = settings.run.ranks() > 1 ? 2 : 1;
  const auto spec = [&](int64_t steps) {
    RunSpec result = spec_of(invocation, chosen, settings);
    auto& overrides = result.sources.overrides;
    for (const std::string& each :
         {fmt::format("train.train_iters={}", steps), "checkpoint.save=" + save, "checkpoint.load=" + save,
          std::string("checkpoint.non_persistent_ckpt_type=local"),
          std::string("checkpoint.non_persistent_save_interval=1"),
          "checkpoint.non_persistent_local_ckpt_dir=" + disk, std::string("logger.timing_log_level=1")})
      overrides.push_back(each);
    if (copies > 1) overrides.push_back("checkpoint.replication=true");
    return result;
  };
  const auto saved = std::make_shared<LocalTimer>(), loaded = std::make_shared<LocalTimer>();
  RunSpec run = spec(settings.saves + 1);
  run.callbacks = {saved};
  run_to_end(run);
  require(saved->saves.size() > 1, "bench ckpt: nothing was saved on local disks");
  const size_t bytes = bytes_in(disk);
  drop_cached(disk);
  const auto timer = std::make_shared<LoadTimer>();
  run = spec(settings.saves + 1);
  run.sources.overrides.emplace_back("validation.skip_train=true");
  run.callbacks = {loaded, timer};
  run_to_end(run);
  require(loaded->loaded, "bench ckpt: nothing was loaded from local disks");
  fs::remove_all(save);
  fs::remove_all(disk);
  const DiskCeilings ceilings =
      disk_ceilings(settings.folder, bytes, static_cast<int>(settings.run.ranks()), settings.saves);
  const double seconds = median({saved->saves.begin() + 1, saved->saves.end()}),
               size = static_cast<double>(bytes);
  if (settings.json) {
    Json json;
    json["case"] = chosen.name;
    json["local_bytes"] = static_cast<int64_t>(bytes);
    json["copies"] = copies;
    json["local_save_seconds"] = seconds;
    json["local_save_of_disk"] = size / seconds / ceilings.write;
    json["local_load_seconds"] = timer->seconds;
    json["disk_write"] = ceilings.write;
    json["disk_read"] = ceilings.read;
    fmt::print(invocation.out, "{}\n", json.dump());
    return 0;
  }
  fmt::print(invocation.out,
             "{}, {}: {:.2f} GB on local disks, {} of everything\n"
             "disk          writes {:.2f} GB/s with fsync, reads {:.2f} GB/s\n"
             "local save    {:.2f} s, {:.2f} GB/s, {:.0f} % of the disk\n"
             "local load    {:.2f} s\n",
             chosen.name, counted(settings.run.ranks(), "rank"), size / 1e9,
             copies == 1 ? "one copy" : "two copies", ceilings.write / 1e9, ceilings.read / 1e9, seconds,
             size / seconds / 1e9, 100 * size / seconds / ceilings.write, timer->seconds);
  return 0;
}

// Removes what the bench made, however it ends.
struct OwnFolder {
  explicit OwnFolder(const std::string& name) : path(name) {
    if (fs::exists(path) && !fs::is_empty(path))
      throw ConfigError(fmt::format("bench ckpt: --dir {}: it is not empty; name a new folder", path));
    require_folder("--dir", path);
  }
  ~OwnFolder() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  OwnFolder(const OwnFolder&) = delete;
  std::string path;
};

}  // namespace

std::string bench_ckpt_help() {
  Settings unused;
  return "usage: megatron bench ckpt CASE [options]\n"
         "\n"
         "Saves and loads a case of bench train, beside sequential I/O of as many bytes on the same disk:\n"
         "synchronous saves, asynchronous ones (what the step behind them waits in the call and before the\n"
         "update, how much slower steps are until the files are published), and loading from files that are\n"
         "no longer in memory. The first asynchronous save, which takes its memory, is not measured. With "
         "--local\n"
         "checkpoints on disks of the ranks' own machines, which ranks also keep for each other.\n"
         "\n"
         "cases:\n" +
         case_list() + "\n" + flags_help(flags(unused));
}

int bench_ckpt(Invocation& invocation) {
  Settings settings;
  TrainCase chosen = find_case("bench ckpt", parse_flags("bench ckpt", invocation.args, flags(settings)));
  check_limits(settings);
  if (settings.batch > 0) chosen.batch = settings.batch;
  const bool cuda = settings.run.choose_device();
  const OwnFolder folder(settings.folder);
  if (settings.local) return bench_local(invocation, chosen, settings);
  std::vector<double> saves;
  if (settings.saves > 1) {
    saves = time_saves(invocation, chosen, settings, settings.saves - 2, false)->whole;
    fs::remove_all(settings.folder);
    require_folder("--dir", settings.folder);
  }
  const auto async = time_saves(invocation, chosen, settings, settings.saves + 1, true);
  saves.insert(saves.end(), async->whole.begin(), async->whole.end());
  const size_t bytes = bytes_in(settings.folder);
  std::vector<double> loads;
  std::shared_ptr<LoadTimer> load;
  for (int64_t i = 0; i < settings.saves; ++i) {
    load = time_load(invocation, chosen, settings);
    loads.push_back(load->seconds);
    invocation.log.info("load: {:.2f} s", load->seconds);
  }
  fs::remove_all(settings.folder);
  require_folder("--dir", settings.folder);
  const DiskCeilings disk =
      disk_ceilings(settings.folder, bytes, static_cast<int>(settings.run.ranks()), settings.saves);

  const auto size = static_cast<double>(bytes);
  const double save = median(saves), seconds_of_load = median(loads), step = median(async->between),
               exposed = median(async->first) - step,
               snapshot = median({async->calls.begin() + 1, async->calls.end()}),
               slower = async->during.empty() ? 1 : mean(async->during) / step,
               copy = cuda ? async->copied_bytes / async->device_to_host_rate : 0,
               allowed = 0.01 + std::max(0.0, copy - step);
  const auto held = static_cast<double>(load->memory.total.current),
             peak = static_cast<double>(load->memory.total.peak);
  if (settings.json) {
    Json json;
    json["case"] = chosen.name;
    json["bytes"] = static_cast<int64_t>(bytes);
    json["save_seconds"] = save;
    json["save_of_disk"] = size / save / disk.write;
    json["load_seconds"] = seconds_of_load;
    json["load_of_disk"] = size / seconds_of_load / disk.read;
    json["load_peak_of_model"] = peak / held;
    json["async_exposed_ms"] = exposed * 1e3;
    json["async_snapshot_ms"] = snapshot * 1e3;
    json["async_waiting_ms"] = (exposed - snapshot) * 1e3;
    json["async_allowed_ms"] = allowed * 1e3;
    json["copied_bytes"] = async->copied_bytes;
    json["copy_ms"] = copy * 1e3;
    json["step_ms"] = step * 1e3;
    json["step_while_writing"] = slower;
    json["disk_write"] = disk.write;
    json["disk_read"] = disk.read;
    json["disk_direct"] = disk.direct;
    fmt::print(invocation.out, "{}\n", json.dump());
    return 0;
  }
  fmt::print(
      invocation.out,
      "{} on {}: {:.2f} GB in a checkpoint\n"
      "disk          writes {:.2f} GB/s with {}fsync, reads {:.2f} GB/s\n"
      "save          {:.2f} s, {:.2f} GB/s, {:.0f} % of the disk\n"
      "load          {:.2f} s, {:.2f} GB/s, {:.0f} % of the disk; memory at most {:.3f} x what stays\n"
      "asynchronous  {:.1f} ms exposed (step {:.1f} ms): {:.1f} in the call, {:.1f} before the update; "
      "{} steps while writing {:.3f} x\n",
      chosen.name, cuda ? "cuda" : "cpu", size / 1e9, disk.write / 1e9, disk.direct ? "O_DIRECT and " : "",
      disk.read / 1e9, save, size / save / 1e9, 100 * size / save / disk.write, seconds_of_load,
      size / seconds_of_load / 1e9, 100 * size / seconds_of_load / disk.read, peak / held, exposed * 1e3,
      step * 1e3, snapshot * 1e3, (exposed - snapshot) * 1e3, async->during.size(), slower);
  if (cuda)
    fmt::print(invocation.out,
               "snapshot      {:.2f} GB a rank at {:.1f} GB/s: {:.1f} ms; at most {:.1f} ms may be exposed\n",
               async->copied_bytes / 1e9, async->device_to_host_rate / 1e9, copy * 1e3, allowed * 1e3);
  return 0;
}

}  // namespace megatron
