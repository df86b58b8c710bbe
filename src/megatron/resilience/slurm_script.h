#pragma once

#include <string>
#include <vector>

namespace megatron {

// A job for Slurm: one srun step of all processes, put back into the queue where its exit code asks for that.
struct SlurmJob {
  std::string name = "megatron";
  int nodes = 1, processes_per_node = 1;
  int gpus_per_node = 0;  // 0: none are asked for
  std::string time;       // as sbatch takes it; "": the partition's
  std::string partition, account;
  std::string log_folder = ".";
  int notice_seconds = 120;  // between SIGTERM and the time limit
  int max_restarts = 3;
  std::vector<std::string> command;
};

// The sbatch script. The step's processes are told by SIGTERM before the limit, and save; exit codes 16, 18,
// 19 and lost processes put the job into the queue again.
std::string slurm_script(const SlurmJob& job);
// Hands a script to sbatch and gives what it printed. An Error where that fails.
std::string submit_to_slurm(const std::string& script_path);

}  // namespace megatron
