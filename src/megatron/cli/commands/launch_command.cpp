#include "megatron/cli/commands.h"

#include <algorithm>
#include <filesystem>

#include "megatron/base/atomic_file.h"
#include "megatron/base/error.h"
#include "megatron/cli/flags.h"
#include "megatron/config/sources/string_list.h"
#include "megatron/resilience/process_launcher.h"
#include "megatron/resilience/slurm_script.h"

namespace megatron {
namespace {

struct LaunchSettings {
  int64_t processes = 1, restarts = 3, port = 0, nodes = 1, node = 0, gpus = 0, notice = 120;
  double backoff = 1;
  std::string address = "127.0.0.1";
  std::string logs, ranks, filter, time, partition, account, name = "megatron", script = "launch.sbatch";
  std::string hosts, ssh = "ssh";
  bool slurm = false, dry_run = false, rejoin = false;
};

std::vector<Flag> launch_flags(LaunchSettings& settings) {
  return {
      int_flag("--nproc", "processes, on each node [1]", settings.processes, 1),
      int_flag("--nproc-per-node", "the same, by torchrun's name", settings.processes, 1),
      int_flag("--nnodes", "machines; on each a launcher is started [1]", settings.nodes, 1),
      int_flag("--node-rank", "which of them this one is, from 0 [0]", settings.node),
      text_flag("--master-addr", "HOST", "the first machine [127.0.0.1]", settings.address),
      int_flag("--max-restarts", "starts after the first [3]", settings.restarts),
      {"--backoff", "SECONDS", "pause before the first restart, then doubled [1]",
       [&](std::string_view command, const std::string& text) {
         settings.backoff = text == "0" ? 0 : parse_positive(command, "--backoff", text);
       }},
      text_flag("--hosts", "FILE", "machines to reach by ssh, a line each: NAME [slots=N]", settings.hosts),
      text_flag("--ssh", "COMMAND", "with --hosts: the program and its options [ssh]", settings.ssh),
      text_flag("--log-dir", "DIR", "a file of each rank's lines", settings.logs),
      text_flag("--show-ranks", "LIST", "ranks whose lines are shown, such as 0,4 [all]", settings.ranks),
      text_flag("--show-lines", "TEXT", "show lines that hold this text [all]", settings.filter),
      int_flag("--master-port", "where processes meet [a free port]", settings.port),
      switch_flag("--rejoin", "start a lost process alone; it joins the others", settings.rejoin),
      switch_flag("--slurm", "write a script for Slurm and submit it", settings.slurm),
      int_flag("--nodes", "with --slurm: nodes [1]", settings.nodes, 1),
      int_flag("--gpus-per-node", "with --slurm: GPUs to ask for [0]", settings.gpus),
      text_flag("--time", "LIMIT", "with --slurm: time limit", settings.time),
      text_flag("--partition", "NAME", "with --slurm", settings.partition),
      text_flag("--account", "NAME", "with --slurm", settings.account),
      text_flag("--job-name", "NAME", "with --slurm [megatron]", settings.name),
      int_flag("--notice", "with --slurm: seconds to save before the limit [120]", settings.notice),
      text_flag("--script", "FILE", "with --slurm: where it is written [launch.sbatch]", settings.script),
      switch_flag("--dry-run", "with --slurm: write the script, submit nothing", settings.dry_run),
  };
}

// Flags that mean something on one of the two ways alone.
constexpr std::string_view kSlurmFlags =
    "--nodes --gpus-per-node --time --partition --account --job-name --notice --script --dry-run";
constexpr std::string_view kLocalFlags =
    "--backoff --show-ranks --show-lines --master-addr --master-port --node-rank --rejoin --hosts --ssh";
// What a file of machines says by itself.
constexpr std::string_view kNodeFlags = "--nnodes --node-rank --rejoin";
constexpr int64_t kTorchrunsPort = 29500;

// Notes which flags are given.
std::vector<Flag> noted(std::vector<Flag> flags, std::vector<std::string>& given) {
  for (Flag& flag : flags)
    flag.set = [&given, name = flag.name, set = std::move(flag.set)](std::string_view command,
                                                                     const std::string& value) {
      given.emplace_back(name);
      set(command, value);
    };
  return flags;
}

void check_given(const std::vector<std::string>& given, bool slurm) {
  for (const std::string& flag : given) {
    if (!slurm && holds_word(kSlurmFlags, flag))
      throw UsageError(fmt::format("launch: {} says something about --slurm alone; add --slurm", flag));
    if (slurm && holds_word(kLocalFlags, flag))
      throw UsageError(fmt::format(
          "launch: {} does nothing with --slurm, whose script starts the job; leave it out", flag));
  }
}

// The machines of --hosts; the first is where processes meet.
std::vector<RemoteHost> hosts_of(LaunchSettings& settings, const std::vector<std::string>& given) {
  for (const std::string& flag : given)
    if (holds_word(kNodeFlags, flag))
      throw UsageError(
          fmt::format("launch: {}: --hosts names the machines, and starts all; leave it out", flag));
  std::vector<RemoteHost> hosts = read_hosts(settings.hosts, static_cast<int>(settings.processes));
  settings.processes = 0;
  for (const RemoteHost& host : hosts) settings.processes += host.slots;
  if (std::ranges::count(given, "--master-addr") == 0) settings.address = address_of(hosts[0]);
  if (settings.port == 0) settings.port = kTorchrunsPort;
  return hosts;
}

int submit(const LaunchSettings& settings, std::vector<std::string> command, Invocation& invocation) {
  const SlurmJob job{.name = settings.name,
                     .nodes = static_cast<int>(settings.nodes),
                     .processes_per_node = static_cast<int>(settings.processes),
                     .gpus_per_node = static_cast<int>(settings.gpus),
                     .time = settings.time,
                     .partition = settings.partition,
                     .account = settings.account,
                     .log_folder = settings.logs.empty() ? "." : settings.logs,
                     .notice_seconds = static_cast<int>(settings.notice),
                     .max_restarts = static_cast<int>(settings.restarts),
                     .command = std::move(command)};
  if (!settings.logs.empty()) std::filesystem::create_directories(settings.logs);
  write_file_atomically(settings.script, slurm_script(job));
  invocation.log.info("launch: wrote {}", settings.script);
  if (!settings.dry_run) fmt::print(invocation.out, "{}", submit_to_slurm(settings.script));
  return 0;
}

}  // namespace

std::string launch_help() {
  LaunchSettings settings;
  return "usage: megatron launch [--nproc N | --hosts FILE | --slurm] [options] -- COMMAND ...\n\n"
         "Starts the processes of a job with the variables that torchrun sets (RANK, WORLD_SIZE, LOCAL_RANK, "
         "MASTER_ADDR, MASTER_PORT), shows what they say with the rank in front, and starts them again where "
         "that helps: after exit codes 16, 18 and 19 and after signals. Codes 1, 2, 3 and 17 end the job. "
         "With --inprocess-restart a run goes on by itself where processes are lost; the launcher acts when "
         "too few are left, and with --rejoin gives it a new process for each.\n\n" +
         flags_help(launch_flags(settings)) +
         "\nmegatron launch --nproc 4 -- megatron pretrain --config run.yaml --save out --load out\n";
}

int run_launch(Invocation& invocation) {
  const auto dashes = std::find(invocation.args.begin(), invocation.args.end(), "--");
  LaunchSettings settings;
  const std::vector<std::string> own(invocation.args.begin(), dashes);
  std::vector<std::string> given;
  const std::vector<std::string> words = parse_flags("launch", own, noted(launch_flags(settings), given));
  if (!words.empty())
    throw UsageError(fmt::format("launch: '{}' is no option; write the command behind --", words[0]));
  std::vector<std::string> command(dashes == invocation.args.end() ? dashes : dashes + 1,
                                   invocation.args.end());
  if (command.empty()) throw UsageError("launch: there is nothing to start; write -- and the command");
  check_given(given, settings.slurm);
  if (settings.slurm) return submit(settings, std::move(command), invocation);
  std::vector<RemoteHost> hosts;
  if (!settings.hosts.empty())
    hosts = hosts_of(settings, given);
  else if (std::ranges::count(given, "--ssh") > 0)
    throw UsageError("launch: --ssh: processes start on this machine; give --hosts");
  if (settings.nodes > 1) {
    if (settings.port == 0)
      throw UsageError("launch: --nnodes: machines meet at one port; give --master-port, the same on all");
    if (std::ranges::find(given, "--master-addr") == given.end())
      throw UsageError(
          "launch: --nnodes: machines meet at the first of them; give --master-addr, the same on all");
    if (settings.node >= settings.nodes)
      throw UsageError(fmt::format("launch: --node-rank {}: there are {} machines, the last of which is {}",
                                   settings.node, settings.nodes, settings.nodes - 1));
    if (settings.rejoin)
      throw UsageError("launch: --rejoin: lost processes join on one machine; leave out --nnodes");
  } else if (settings.node > 0) {
    throw UsageError("launch: --node-rank: there is one machine; give --nnodes");
  }
  LaunchJob job{.processes = static_cast<int>(settings.processes),
                .command = std::move(command),
                .max_restarts = static_cast<int>(settings.restarts),
                .backoff = settings.backoff,
                .log_folder = settings.logs,
                .shown = {},
                .filter = settings.filter,
                .master_port = static_cast<int>(settings.port),
                .nodes = static_cast<int>(settings.nodes),
                .node = static_cast<int>(settings.node),
                .master_address = settings.address,
                .rejoin = settings.rejoin,
                .hosts = std::move(hosts),
                .ssh = {}};
  for_each_word(settings.ssh, [&](std::string_view word) { job.ssh.emplace_back(word); });
  for (const std::string_view rank : comma_separated(settings.ranks))
    job.shown.push_back(static_cast<int>(parse_int("launch", "--show-ranks", rank)));
  return launch_job(job, invocation.log, invocation.out);
}

}  // namespace megatron
