#include "megatron/cli/commands.h"

#include "megatron/autotune/machine/gpu_spec.h"
#include "megatron/base/atomic_file.h"
#include "megatron/base/error.h"
#include "megatron/base/writable_folder.h"
#include "megatron/cli/flags.h"
#include "megatron/report/run_page.h"

namespace megatron {
namespace {

struct Options {
  std::string out = "report.html", title, gpu;
  bool fp8 = false, json = false;
};

std::vector<Flag> flags(Options& options) {
  return {text_flag("--out", "FILE", "the page to write (report.html)", options.out),
          text_flag("--title", "TEXT", "its title; the run's name without one", options.title),
          text_flag("--gpu", "NAME", "show MFU against the bf16 peak of this GPU, such as H100", options.gpu),
          switch_flag("--fp8", "with --gpu: against its fp8 peak", options.fp8),
          switch_flag("--json", "print the page's path as JSON", options.json)};
}

// Runs of the same name could not be told apart.
void tell_apart(std::vector<report::RunLog>& runs, const std::vector<std::string>& paths) {
  for (size_t i = 0; i < runs.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      if (runs[i].name == runs[j].name) {
        for (size_t k = 0; k < runs.size(); ++k) runs[k].name = paths[k];
        return;
      }
}

}  // namespace

std::string report_help() {
  Options options;
  return "usage: megatron report RUN... [options]\n"
         "\n"
         "Draws training runs as one HTML page that needs nothing else: loss, learning rate, gradient norm,\n"
         "throughput, MFU, memory, load of experts, waiting for data, and when checkpoints were saved, "
         "updates\n"
         "skipped and jobs started again. RUN is a file that --metrics wrote, or a folder with one; a\n"
         "progress.txt beside it (--log-progress) tells of saves and starts. Several runs are compared.\n"
         "\n" +
         flags_help(flags(options));
}

int run_report(Invocation& invocation) {
  Options options;
  const std::vector<std::string> paths = parse_flags("report", invocation.args, flags(options));
  if (paths.empty()) throw UsageError("report: name a run: megatron report METRICS.jsonl, or its folder");
  require_file_place("--out", options.out);
  report::RunPageOptions page;
  page.title = options.title;
  if (!options.gpu.empty()) {
    const autotune::GpuSpec& gpu = autotune::gpu_spec(options.gpu);
    page.device = gpu.name;
    page.peak_tflops = options.fp8 ? gpu.tflops8 : gpu.tflops16;
    if (page.peak_tflops <= 0)
      throw ConfigError(fmt::format("report: {} has no fp8; leave out --fp8", gpu.name));
  }
  std::vector<report::RunLog> runs;
  for (const std::string& path : paths) runs.push_back(report::read_run_log(path));
  tell_apart(runs, paths);
  write_file_atomically(options.out, report::render(report::run_page(runs, page)));
  print_path(invocation, options.out, options.json);
  return 0;
}

}  // namespace megatron
