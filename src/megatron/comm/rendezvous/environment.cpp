#include "megatron/comm/rendezvous/environment.h"

#include <charconv>
#include <cstring>

#include "megatron/base/error.h"

namespace megatron {
namespace {

constexpr int kDefaultPort = 29500, kLastPort = 65535;

int number(const Environment& environment, const char* name, int fallback) {
  const char* text = environment(name);
  if (!text || !*text) return fallback;
  int value = 0;
  const char* end = text + std::strlen(text);
  const auto [at, problem] = std::from_chars(text, end, value);
  if (problem != std::errc() || at != end || value < 0)
    throw ConfigError(
        fmt::format("the environment says {}={}, which is no whole number from 0 on", name, text));
  return value;
}

std::string word(const Environment& environment, const char* name) {
  const char* text = environment(name);
  return text ? text : "";
}

bool has(const Environment& environment, const char* name) { return !word(environment, name).empty(); }

// The tasks of the first node in "4(x2),3", which Slurm says of a step or of the whole job.
int tasks_per_node(const Environment& environment) {
  for (const char* name : {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"}) {
    int value = 0;
    const std::string text = word(environment, name);
    if (std::from_chars(text.data(), text.data() + text.size(), value).ec == std::errc() && value > 0)
      return value;
  }
  return number(environment, "SLURM_NTASKS_PER_NODE", 1);
}

// Every run of one user gets a port of its own where nobody chose one.
int port_for_job(const Environment& environment) {
  return 20000 + number(environment, "SLURM_JOB_ID", kDefaultPort) % 20000;
}

}  // namespace

std::string first_host(const std::string& list) {
  const size_t bracket = list.find('['), comma = list.find(',');
  if (bracket == std::string::npos || comma < bracket) return list.substr(0, comma);
  const size_t end = list.find_first_of(",-]", bracket);
  return list.substr(0, bracket) + list.substr(bracket + 1, end - bracket - 1);
}

LaunchPlace find_place(const Environment& environment) {
  using Starter = LaunchPlace::Starter;
  LaunchPlace place;
  place.master_addr = word(environment, "MASTER_ADDR");
  place.store_folder = word(environment, "MEGATRON_STORE");
  place.rejoins = number(environment, "MEGATRON_REJOIN", 0) > 0;
  place.master_port = number(environment, "MASTER_PORT", kDefaultPort);
  if (place.master_port > kLastPort)
    throw ConfigError(
        fmt::format("the environment says MASTER_PORT={}: ports go up to {}", place.master_port, kLastPort));
  if (has(environment, "RANK") && has(environment, "WORLD_SIZE")) {
    place.starter = Starter::Torchrun;
    place.process = number(environment, "RANK", 0);
    place.processes = number(environment, "WORLD_SIZE", 1);
    place.processes_here = number(environment, "LOCAL_WORLD_SIZE", 1);
    // torchrun's own agent listens at MASTER_PORT, in its own language: we meet next door.
    if (word(environment, "TORCHELASTIC_USE_AGENT_STORE") == "True") ++place.master_port;
    if (place.master_addr.empty() && place.processes > 1 && place.store_folder.empty())
      throw ConfigError(
          "RANK and WORLD_SIZE are set but MASTER_ADDR is not: say where the first process runs");
  } else if (has(environment, "OMPI_COMM_WORLD_SIZE")) {
    place.starter = Starter::OpenMpi;
    place.process = number(environment, "OMPI_COMM_WORLD_RANK", 0);
    place.processes = number(environment, "OMPI_COMM_WORLD_SIZE", 1);
    place.processes_here = number(environment, "OMPI_COMM_WORLD_LOCAL_SIZE", 1);
  } else if (has(environment, "SLURM_STEP_ID") && has(environment, "SLURM_PROCID")) {
    place.starter = Starter::Slurm;
    place.process = number(environment, "SLURM_PROCID", 0);
    // A step may have fewer tasks than its job.
    place.processes = number(environment, "SLURM_STEP_NUM_TASKS", number(environment, "SLURM_NTASKS", 1));
    place.processes_here = tasks_per_node(environment);
    if (place.master_addr.empty())
      place.master_addr =
          first_host(word(environment, has(environment, "SLURM_STEP_NODELIST") ? "SLURM_STEP_NODELIST"
                                                                               : "SLURM_JOB_NODELIST"));
    if (!has(environment, "MASTER_PORT")) place.master_port = port_for_job(environment);
  }
  if (place.process >= place.processes)
    throw ConfigError(fmt::format("the environment says that this is process {} of {}: numbers begin with 0",
                                  place.process, place.processes));
  return place;
}

}  // namespace megatron
