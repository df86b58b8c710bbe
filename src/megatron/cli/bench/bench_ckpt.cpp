#include "megatron/cli/bench/bench_parts.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <numeric>

#include "megatron/base/error.h"
#include "megatron/base/json.h"
#include "megatron/base/writable_folder.h"
#include "megatron/cli/bench/bench_cases.h"
#include "megatron/cli/bench/disk_ceilings.h"
#include "megatron/cli/flags.h"
#include "megatron/training/log/timers.h"
#include "megatron/training/run/run.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

struct Settings {
  BenchRun run{.steps = 20, .warmup = 3};
  int64_t saves = 3, batch = 0;
  std::string folder = "bench-ckpt";
  bool json = false;
};

std::vector<Flag> flags(Settings& s) {
  return {
      text_flag("--dir", "DIR", "a new folder on the disk to measure; removed at the end (bench-ckpt)",
                s.folder),
      int_flag("--saves", "saves of each kind; the first of the asynchronous ones takes its memory (3)",
               s.saves, 2),
      int_flag("--steps", "steps between saves (20)", s.run.steps, 2),
      int_flag("--batch", "sequences of a step (the case's)", s.batch, 1),
      int_flag("--warmup", "steps before them (3)", s.run.warmup, 1),
      int_flag("--tensor-model-parallel-size", "ranks that share each layer (1)", s.run.tensor_parallel, 1),
      int_flag("--pipeline-model-parallel-size", "ranks that share the layers among them (1)",
               s.run.pipeline_parallel, 1),
      int_flag("--data-parallel-size", "ranks that share the batch (1)", s.run.data_parallel, 1),
      text_flag("--device", "cpu|cuda", "where to compute (cuda where a GPU is there)", s.run.device),
      text_flag("--precision", "fp32|bf16|fp8", "of weights and activations (fp32 on the CPU, bf16 on a GPU)",
                s.run.precision),
      switch_flag("--json", "one JSON document", s.json),
  };
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

double mean(const std::vector<double>& values) {
  return values.empty()
             ? 0
             : std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// Asks for a save every so many steps, and times the iterations of rank 0 with what lies between them.
class SaveTimer final : public Callback {
 public:
  explicit SaveTimer(const Settings& settings) : settings_(settings) {}

  void on(RunEvent event, RunView& view) override {
    if (!view.is_first_rank()) return;
    if (event == RunEvent::train_start) last_ = Clock::now();
    if (event == RunEvent::save) calls.push_back(seconds_since(last_));
    if (event != RunEvent::step_end) return;
    const int64_t done = view.report->iteration - settings_.run.warmup;
    if (done > 0) add(seconds_since(last_));
    last_ = Clock::now();
    if (done >= 0 && done % settings_.run.steps == 0 && done / settings_.run.steps < settings_.saves) {
      view.save();
      since_save_ = 0;
      writing_ = true;
    }
  }
  void on_message(std::string_view line) override {
    if (line.starts_with("saved ")) writing_ = false, ++published;
  }

  std::vector<double> calls;    // a save, until the run may go on
  std::vector<double> first;    // the step behind a save, with the save itself
  std::vector<double> during;   // further steps while the save is written
  std::vector<double> between;  // steps with nothing beside them
  int64_t published = 0;

 private:
  static double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  }
  void add(double seconds) {
    const bool warm = calls.size() > 1;  // the first save allocates
    if (since_save_ == 0) {
      if (warm) first.push_back(seconds);
    } else if (!writing_) {
      between.push_back(seconds);
    } else if (warm) {
      during.push_back(seconds);
    }
    ++since_save_;
  }

  const Settings& settings_;
  Clock::time_point last_;
  int64_t since_save_ = 0;
  bool writing_ = false;
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
  if (const RunEnd end = run(spec); end.reason != RunEnd::Reason::finished)
    throw Error("bench ckpt: " + end.text());
}

std::shared_ptr<SaveTimer> time_saves(const Invocation& invocation, const TrainCase& chosen,
                                      const Settings& settings, bool async) {
  RunSpec spec = spec_of(invocation, chosen, settings);
  auto& overrides = spec.sources.overrides;
  overrides.push_back(
      fmt::format("train.train_iters={}", settings.run.warmup + settings.saves * settings.run.steps));
  overrides.push_back("checkpoint.save=" + settings.folder);
  overrides.push_back("checkpoint.most_recent_k=1");
  overrides.push_back(fmt::format("checkpoint.async_save={}", async));
  auto timer = std::make_shared<SaveTimer>(settings);
  spec.callbacks = {timer};
  run_to_end(spec);
  require(timer->published >= settings.saves && !timer->between.empty(),
          "bench ckpt: {} of {} saves were complete; give more --steps between them", timer->published,
          settings.saves);
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
         "synchronous saves, asynchronous ones (what the step behind them waits, how much slower steps are\n"
         "while files are written), and loading from files that are no longer in memory.\n"
         "\n"
         "cases:\n" +
         case_list() + "\n" + flags_help(flags(unused));
}

int bench_ckpt(Invocation& invocation) {
  Settings settings;
  TrainCase chosen = find_case("bench ckpt", parse_flags("bench ckpt", invocation.args, flags(settings)));
  if (settings.batch > 0) chosen.batch = settings.batch;
  const bool cuda = settings.run.choose_device();
  const OwnFolder folder(settings.folder);
  const auto synchronous = time_saves(invocation, chosen, settings, false);
  const size_t bytes = bytes_in(settings.folder);
  const auto load = time_load(invocation, chosen, settings);
  fs::remove_all(settings.folder);
  require_folder("--dir", settings.folder);
  const DiskCeilings disk = disk_ceilings(settings.folder, bytes, static_cast<int>(settings.run.ranks()));
  const auto asynchronous = time_saves(invocation, chosen, settings, true);

  const auto size = static_cast<double>(bytes);
  const double save = median(synchronous->calls), step = median(asynchronous->between),
               exposed = median(asynchronous->first) - step,
               slower = asynchronous->during.empty() ? 1 : mean(asynchronous->during) / step;
  const auto held = static_cast<double>(load->memory.total.current),
             peak = static_cast<double>(load->memory.total.peak);
  if (settings.json) {
    Json json;
    json["case"] = chosen.name;
    json["bytes"] = static_cast<int64_t>(bytes);
    json["save_seconds"] = save;
    json["save_of_disk"] = size / save / disk.write;
    json["load_seconds"] = load->seconds;
    json["load_of_disk"] = size / load->seconds / disk.read;
    json["load_peak_of_model"] = peak / held;
    json["async_exposed_ms"] = exposed * 1e3;
    json["async_call_ms"] = median({asynchronous->calls.begin() + 1, asynchronous->calls.end()}) * 1e3;
    json["step_ms"] = step * 1e3;
    json["step_while_writing"] = slower;
    json["disk_write"] = disk.write;
    json["disk_read"] = disk.read;
    fmt::print(invocation.out, "{}\n", json.dump());
    return 0;
  }
  fmt::print(invocation.out,
             "{} on {}: {:.2f} GB in a checkpoint\n"
             "disk          writes {:.2f} GB/s with fsync, reads {:.2f} GB/s\n"
             "save          {:.2f} s, {:.2f} GB/s, {:.0f} % of the disk\n"
             "load          {:.2f} s, {:.2f} GB/s, {:.0f} % of the disk; memory at most {:.3f} x what stays\n"
             "asynchronous  {:.1f} ms exposed (step {:.1f} ms), steps while writing {:.3f} x\n",
             chosen.name, cuda ? "cuda" : "cpu", size / 1e9, disk.write / 1e9, disk.read / 1e9, save,
             size / save / 1e9, 100 * size / save / disk.write, load->seconds, size / load->seconds / 1e9,
             100 * size / load->seconds / disk.read, peak / held, exposed * 1e3, step * 1e3, slower);
  return 0;
}

}  // namespace megatron
