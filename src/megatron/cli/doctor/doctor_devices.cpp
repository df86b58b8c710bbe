#include <netdb.h>

#include <algorithm>

#include "megatron/base/error.h"
#include "megatron/cli/doctor/doctor.h"
#include "megatron/cli/version.h"
#include "megatron/comm/mpi_transport.h"
#include "megatron/comm/nccl_group.h"
#include "megatron/comm/rendezvous/socket.h"

namespace megatron {
namespace {

constexpr double kGib = 1 << 30;

// What a build without the library lacks, and how to get it.
struct Missing {
  std::string_view library, effect;
};
constexpr Missing kMissing[] = {
    {"oneDNN", "CPU GEMMs are slower: install libdnnl-dev and build again"},
    {"OpenBLAS", "second choice for CPU GEMMs: install libopenblas-dev where oneDNN is not to be had"},
    {"MPI",
     "ranks over mpirun are refused: install libopenmpi-dev and build again (torchrun's variables work)"},
    {"CUDA", "GPUs are not used: build with MEGATRON_CUDA=1 where nvcc is installed"},
    {"cuDNN", "attention on GPUs uses our own kernels, which are slower: install cuDNN 9 and build again"},
    {"cudnn-frontend",
     "attention on GPUs uses our own kernels, which are slower: give its headers by "
     "-Dcudnn_frontend_INCLUDE_DIR and build again"},
    {"NCCL", "one process cannot use several GPUs fast, several processes not at all: install libnccl-dev"},
};

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

bool resolves(const std::string& host) {
  addrinfo* found = nullptr;
  const bool good = getaddrinfo(host.c_str(), nullptr, nullptr, &found) == 0;
  if (found) freeaddrinfo(found);
  return good;
}

Finding meeting_point(const LaunchPlace& place) {
  if (!place.store_folder.empty())
    return {Grade::Ok, "rendezvous", fmt::format("through the folder {}", place.store_folder), ""};
  const std::string at = fmt::format("{}:{}", place.master_addr, place.master_port);
  if (!place.master_addr.empty() && !resolves(place.master_addr))
    return {Grade::Wrong, "rendezvous", fmt::format("{}: no such host", at),
            "set MASTER_ADDR to the address of the machine of process 0"};
  if (place.process != 0) return {Grade::Ok, "rendezvous", fmt::format("at {}", at), ""};
  try {
    Socket::listen(place.master_port);
  } catch (const Error& error) {
    return {Grade::Wrong, "rendezvous", error.what(), "choose another MASTER_PORT for all processes"};
  }
  return {Grade::Ok, "rendezvous", fmt::format("port {} is free here", place.master_port), ""};
}

}  // namespace

CheckList build_section() {
  const BuildInfo& info = build_info();
  CheckList section{"build", {}};
  section.findings.push_back(
      {Grade::Ok, "megatron",
       fmt::format("{}{}, {}, {}", info.version, info.commit.empty() ? "" : fmt::format(" ({})", info.commit),
                   info.compiler, info.build_type),
       ""});
  const bool has_onednn = std::ranges::any_of(info.options, [](const BuildOption& option) {
    return option.name == "oneDNN" && option.value != "left out";
  });
  for (const BuildOption& option : info.options) {
    Finding finding{Grade::Ok, std::string(option.name), std::string(option.value), ""};
    const bool has_better = option.name == "OpenBLAS" && has_onednn;  // which does its work
    if (option.value == "left out" && !has_better) {
      finding.grade = Grade::Note;
      for (const Missing& missing : kMissing)
        if (missing.library == option.name) finding.advice = missing.effect;
    }
    section.findings.push_back(std::move(finding));
  }
  return section;
}

CheckList gpu_section(const GpuReport& report) {
  CheckList section{"GPUs", {}};
  auto add = [&](Grade grade, std::string subject, std::string text, std::string advice = "") {
    section.findings.push_back({grade, std::move(subject), std::move(text), std::move(advice)});
  };
  if (!report.built_in) {
    add(Grade::Ok, "CUDA", "not part of this build: training runs on the CPU");
    return section;
  }
  if (report.driver_version == 0)
    add(Grade::Note, "driver", "none", "training runs on the CPU; install NVIDIA's driver to use GPUs");
  else if (report.driver_version / 1000 < report.runtime_version / 1000)
    add(Grade::Wrong, "driver", fmt::format("for CUDA {}", version_text(report.driver_version)),
        fmt::format("this build is of CUDA {}: install a newer driver",
                    version_text(report.runtime_version)));
  else
    add(Grade::Ok, "driver",
        fmt::format("for CUDA {}, the build's is {}", version_text(report.driver_version),
                    version_text(report.runtime_version)));
  if (report.driver_version != 0 && !report.fault.empty())
    add(Grade::Wrong, "GPUs", report.fault, "see nvidia-smi and dmesg; CUDA_VISIBLE_DEVICES may hide them");
  for (size_t i = 0; i < report.gpus.size(); ++i) {
    const GpuInfo& gpu = report.gpus[i];
    const std::string subject = fmt::format("cuda:{}", i);
    if (!gpu.fault.empty()) {
      add(Grade::Wrong, subject, fmt::format("{}: {}", gpu.name, gpu.fault),
          "see nvidia-smi and dmesg; another program may hold it alone");
      continue;
    }
    const double total = static_cast<double>(gpu.total_bytes), free = static_cast<double>(gpu.free_bytes);
    const bool taken = free < 0.8 * total;
    add(taken ? Grade::Note : Grade::Ok, subject,
        fmt::format("{}, {} SMs of {}.{}, {:.1f} of {:.1f} GiB free", gpu.name, gpu.sm_count,
                    gpu.compute_capability / 10, gpu.compute_capability % 10, free / kGib, total / kGib),
        taken ? "another program holds its memory: see nvidia-smi" : "");
    if (gpu.compute_capability < 80)
      add(Grade::Wrong, subject, "older than Ampere",
          "the kernels need compute capability 8.0 for bf16: use --device cpu or another GPU");
    else if (gpu.compute_capability < 89)
      add(Grade::Note, subject, "has no fp8", "use --bf16; fp8 needs compute capability 8.9 or later");
  }
  if (report.gpus.size() < 2) return section;
  for (size_t i = 0; i < report.gpus.size(); ++i)
    if (report.gpus[i].reaches.size() + 1 < report.gpus.size())
      add(Grade::Note, "links",
          fmt::format("cuda:{} reaches {} of {} others directly", i, report.gpus[i].reaches.size(),
                      report.gpus.size() - 1),
          "transfers go through host memory: see nvidia-smi topo -m");
  if (section.findings.back().subject != "links") add(Grade::Ok, "links", "every GPU reaches every other");
  if (!nccl_is_built_in())
    add(Grade::Wrong, "NCCL", "not part of this build",
        "several GPUs need it: install libnccl-dev, build again");
  return section;
}

CheckList rank_section(const Environment& environment) {
  CheckList section{"ranks", {}};
  auto add = [&](Grade grade, std::string subject, std::string text, std::string advice = "") {
    section.findings.push_back({grade, std::move(subject), std::move(text), std::move(advice)});
  };
  auto given = [&](const char* name) {
    const char* value = environment(name);
    return value && *value;
  };
  LaunchPlace place;
  try {
    place = find_place(environment);
  } catch (const Error& error) {
    add(Grade::Wrong, "launch", error.what(), "mend the variable, or unset RANK and WORLD_SIZE to run alone");
    return section;
  }
  using Starter = LaunchPlace::Starter;
  if (place.starter == Starter::Nobody) {
    add(Grade::Ok, "launch", "this process alone; --ranks N: N of its threads");
    if (given("RANK") != given("WORLD_SIZE"))
      add(Grade::Note, "launch",
          fmt::format("{} is set without {}", given("RANK") ? "RANK" : "WORLD_SIZE",
                      given("RANK") ? "WORLD_SIZE" : "RANK"),
          "set both, or neither: one alone is ignored");
    return section;
  }
  const char* by = place.starter == Starter::Torchrun  ? "torchrun's variables"
                   : place.starter == Starter::OpenMpi ? "mpirun"
                                                       : "srun";
  add(Grade::Ok, "launch",
      fmt::format("process {} of {}, {} on this machine, by {}", place.process, place.processes,
                  place.processes_here, by));
  if (place.starter == Starter::OpenMpi && !mpi_is_built_in())
    add(Grade::Wrong, "MPI", "not part of this build",
        "install libopenmpi-dev and build again, or start with torchrun's variables");
  if (place.starter != Starter::OpenMpi && place.processes > 1)
    section.findings.push_back(meeting_point(place));
  return section;
}

}  // namespace megatron
