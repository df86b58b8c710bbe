#include "megatron/resilience/slurm_script.h"

#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <memory>

#include "megatron/base/error.h"
#include "megatron/resilience/shell_words.h"

namespace megatron {

std::string slurm_script(const SlurmJob& job) {
  std::string text = "#!/bin/bash\n";
  const auto option = [&](std::string_view name, const std::string& value) {
    if (!value.empty()) text += fmt::format("#SBATCH --{}={}\n", name, value);
  };
  option("job-name", job.name);
  option("nodes", std::to_string(job.nodes));
  option("ntasks-per-node", std::to_string(job.processes_per_node));
  if (job.gpus_per_node > 0) option("gpus-per-node", std::to_string(job.gpus_per_node));
  option("time", job.time);
  option("partition", job.partition);
  option("account", job.account);
  option("output", job.log_folder + "/%x_%j.log");
  option("open-mode", "append");
  option("signal", fmt::format("TERM@{}", job.notice_seconds));
  text += "#SBATCH --requeue\n\n";
  text += "export MEGATRON_LAUNCH=1\n";
  // srun tells the largest of the tasks' codes, which says neither that one of them gives up nor that those
  // that are left have done all: each task leaves its own.
  text += fmt::format("export MEGATRON_CODES={}/.codes_${{SLURM_JOB_ID}}_${{SLURM_RESTART_COUNT:-0}}\n",
                      shell_quoted(job.log_folder));
  text += "mkdir -p \"$MEGATRON_CODES\"\n";
  // A process that dies does not end the step: the others may go on without it. The shell waits for its
  // command when both are told to leave.
  text +=
      "srun --kill-on-bad-exit=0 --label bash -c 'trap : TERM; \"$@\"; code=$?; "
      "echo $code >\"$MEGATRON_CODES/$SLURM_PROCID\"; exit $code' task";
  for (const std::string& word : job.command) text += " " + shell_quoted(word);
  text += fmt::format(R"(
code=$?
restarts=${{SLURM_RESTART_COUNT:-0}}
well=0 lost=0 again=0 final=0 tasks=0
for file in "$MEGATRON_CODES"/*; do
  [ -f "$file" ] || continue
  tasks=$((tasks + 1))
  each=$(cat "$file")
  case $each in
    0) well=1 ;;
    19|129|1[3-8][0-9]|19[0-2]) lost=1 ;;
    16|18) again=1; code=$each ;;
    *) final=$each ;;
  esac
done
rm -rf "$MEGATRON_CODES"
[ "$tasks" -lt "${{SLURM_NTASKS:-1}}" ] && lost=1
if [ "$tasks" = 0 ]; then
  case $code in
    0|16|18|19|129|1[3-8][0-9]|19[0-2]) ;;
    *) final=$code ;;
  esac
fi
if [ "$final" != 0 ]; then
  echo "launch: a process ended with code $final; not started again: it would not help"
  exit "$final"
fi
if [ "$well" = 1 ] && [ "$again" = 0 ]; then
  [ "$lost" = 1 ] && echo "launch: done without some of its processes"
  exit 0
fi
[ "$lost" = 1 ] && [ "$again" = 0 ] && code=19
if [ "$restarts" -lt {0} ]; then
  echo "launch: restart $((restarts + 1)) of {0}: the step ended with code $code; the job is queued again"
  scontrol requeue "$SLURM_JOB_ID"
else
  echo "launch: the step ended with code $code; not started again: {0} restarts were made"
fi
exit $code
)",
                      job.max_restarts);
  return text;
}

std::string submit_to_slurm(const std::string& script_path) {
  const std::string command = "sbatch " + shell_quoted(script_path) + " 2>&1";
  std::FILE* const pipe = ::popen(command.c_str(), "re");
  require(pipe != nullptr, "launch: sbatch cannot be started");
  std::string said;
  std::array<char, 512> buffer{};
  while (const size_t got = std::fread(buffer.data(), 1, buffer.size(), pipe))
    said.append(buffer.data(), got);
  const int status = ::pclose(pipe);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    throw ConfigError(fmt::format("launch: sbatch {} failed: {}", script_path, said));
  return said;
}

}  // namespace megatron
