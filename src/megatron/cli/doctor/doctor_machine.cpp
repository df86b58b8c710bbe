#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <thread>

#include "megatron/base/cache_folder.h"
#include "megatron/base/error.h"
#include "megatron/base/text_file.h"
#include "megatron/cli/doctor/doctor.h"
#include "megatron/device/cpu_pool.h"

namespace megatron {
namespace {

constexpr double kGib = 1 << 30;
constexpr uint64_t kNoLimit = ~uint64_t{0};

std::string text_of(const std::string& path) {
  try {
    return read_text_file(path);
  } catch (const Error&) {
    return {};
  }
}

// "key   : value" or "key: 12 kB".
std::string value_of(const std::string& text, std::string_view key) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(key)) continue;
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return {};
}

std::optional<uint64_t> number_in(const std::string& text) {
  if (text.empty() || text[0] < '0' || text[0] > '9') return {};
  return std::strtoull(text.c_str(), nullptr, 10);
}

std::optional<uint64_t> free_at(const std::string& path) {
  struct statvfs disk {};
  if (access(path.c_str(), W_OK) != 0 || statvfs(path.c_str(), &disk) != 0) return {};
  return static_cast<uint64_t>(disk.f_bavail) * disk.f_frsize;
}

// Where a folder will be made: what is there of its path already.
std::string nearest_folder(std::filesystem::path path) {
  std::error_code ignored;
  while (!path.empty() && !std::filesystem::exists(path, ignored) && path != path.parent_path())
    path = path.parent_path();
  return path.string();
}

uint64_t limit_of(int which) {
  struct rlimit limit {};
  if (getrlimit(static_cast<__rlimit_resource_t>(which), &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
    return kNoLimit;
  return limit.rlim_cur;
}

std::string gib(uint64_t bytes) { return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / kGib); }

Finding disk_finding(const DiskPlace& disk) {
  Finding finding{.subject = disk.what};
  if (!disk.free_bytes) {
    finding.grade = Grade::Wrong;
    finding.text = fmt::format("{} cannot be written to", disk.path);
    finding.advice = "make it writable, or start from another folder";
    return finding;
  }
  finding.text = fmt::format("{} free at {}", gib(*disk.free_bytes), disk.path);
  const double free = static_cast<double>(*disk.free_bytes);
  if (free < kGib)
    finding.grade = Grade::Wrong;
  else if (free < 20 * kGib)
    finding.grade = Grade::Note;
  if (finding.grade != Grade::Ok)
    finding.advice =
        "a checkpoint takes 14 bytes a parameter (13 GiB for 1B): free some, or --save elsewhere";
  return finding;
}

}  // namespace

std::vector<std::string> cpu_features(const std::string& cpuinfo) {
  std::istringstream flags(value_of(cpuinfo, "flags"));
  std::vector<std::string> there{std::istream_iterator<std::string>(flags), {}}, found;
  for (std::string_view wanted : {"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_bf16", "amx_bf16"})
    for (const std::string& flag : there)
      if (flag == wanted) found.push_back(flag);
  return found;
}

Machine look_at_machine() {
  Machine machine;
  struct utsname name {};
  uname(&name);
  const std::string release = text_of("/etc/os-release");
  if (const size_t at = release.find("PRETTY_NAME=\""); at != std::string::npos)
    machine.system = release.substr(at + 13, release.find('"', at + 13) - at - 13);
  machine.system += fmt::format("{}Linux {}", machine.system.empty() ? "" : ", ", name.release);
  const std::string cpuinfo = text_of("/proc/cpuinfo"), memory = text_of("/proc/meminfo");
  machine.cpu = value_of(cpuinfo, "model name");
  machine.features = cpu_features(cpuinfo);
  machine.cores = static_cast<int>(std::thread::hardware_concurrency());
  machine.usable_cores = available_cores();
  const std::string quota = text_of("/sys/fs/cgroup/cpu.max");  // "200000 100000", or "max 100000"
  if (auto granted = number_in(quota))
    if (const size_t space = quota.find(' '); space != std::string::npos)
      machine.cpu_quota = static_cast<double>(*granted) /
                          static_cast<double>(number_in(quota.substr(space + 1)).value_or(100000));
  machine.memory = number_in(value_of(memory, "MemTotal")).value_or(0) * 1024;
  machine.available_memory = number_in(value_of(memory, "MemAvailable")).value_or(0) * 1024;
  machine.memory_limit = number_in(text_of("/sys/fs/cgroup/memory.max"));
  machine.disks.push_back({"working folder", std::filesystem::current_path().string(), free_at(".")});
  std::error_code ignored;
  const std::string temporary = std::filesystem::temp_directory_path(ignored).string();
  machine.disks.push_back({"temporary files", temporary, free_at(temporary)});
  if (const std::string folder = cache_folder(); !folder.empty()) {
    const std::string cache = nearest_folder(folder);
    machine.disks.push_back({"cache", cache, free_at(cache)});
  }
  machine.open_files = limit_of(RLIMIT_NOFILE);
  machine.locked_bytes = limit_of(RLIMIT_MEMLOCK);
  machine.shared_memory = free_at("/dev/shm");
  return machine;
}

CheckList machine_section(const Machine& machine) {
  CheckList section{"machine", {}};
  auto add = [&](Grade grade, std::string subject, std::string text, std::string advice = "") {
    section.findings.push_back({grade, std::move(subject), std::move(text), std::move(advice)});
  };
  add(Grade::Ok, "system", machine.system);
  add(Grade::Ok, "CPU", machine.cpu.empty() ? "unknown" : machine.cpu);
  std::string cores = fmt::format("{} of {} usable", machine.usable_cores, machine.cores);
  if (machine.cpu_quota > 0 && machine.cpu_quota + 0.5 < machine.usable_cores)
    add(Grade::Note, "cores",
        fmt::format("{}, but the control group grants {:.1f}", cores, machine.cpu_quota),
        "threads will wait for each other: raise the quota, or pin the process to fewer cores (taskset)");
  else if (machine.usable_cores < machine.cores)
    add(Grade::Note, "cores", cores, "an affinity mask (taskset, mpirun --bind-to) keeps the rest away");
  else
    add(Grade::Ok, "cores", cores);
  std::string features;
  for (const std::string& feature : machine.features) features += (features.empty() ? "" : " ") + feature;
  const bool wide =
      std::find(machine.features.begin(), machine.features.end(), "avx512bw") != machine.features.end();
  if (std::find(machine.features.begin(), machine.features.end(), "avx2") == machine.features.end())
    add(Grade::Wrong, "instructions", features.empty() ? "unknown" : features,
        "the CPU kernels need AVX2 and FMA (x86-64-v3): use another machine");
  else
    add(wide ? Grade::Ok : Grade::Note, "instructions", features,
        wide ? "" : "without AVX-512 the CPU kernels run at about half their speed");
  uint64_t ceiling = machine.memory;
  std::string memory = fmt::format("{}, {} available", gib(machine.memory), gib(machine.available_memory));
  if (machine.memory_limit && *machine.memory_limit < machine.memory) {
    ceiling = *machine.memory_limit;
    memory += fmt::format(", the control group allows {}", gib(ceiling));
  }
  const double usable = static_cast<double>(std::min(ceiling, machine.available_memory));
  const Grade grade = usable < 0.5 * kGib ? Grade::Wrong : usable < 4 * kGib ? Grade::Note : Grade::Ok;
  add(grade, "memory", memory,
      grade == Grade::Ok ? ""
                         : "training takes 16 bytes a parameter and more: end other programs, or train less");
  for (const DiskPlace& disk : machine.disks) section.findings.push_back(disk_finding(disk));
  if (machine.open_files < 1024)
    add(Grade::Wrong, "open files", fmt::format("at most {}", machine.open_files),
        "data and checkpoints need more: ulimit -n 65536");
  else
    add(Grade::Ok, "open files",
        machine.open_files == kNoLimit ? "no limit" : fmt::format("at most {}", machine.open_files));
  return section;
}

}  // namespace megatron
