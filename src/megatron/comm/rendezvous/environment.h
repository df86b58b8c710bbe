#pragma once

#include <functional>
#include <string>

namespace megatron {

// How this process was started, as the variables of torchrun, mpirun or srun tell it.
struct LaunchPlace {
  enum class Starter { Nobody, Torchrun, OpenMpi, Slurm } starter = Starter::Nobody;
  int process = 0, processes = 1;
  int processes_here = 1;   // on this machine
  std::string master_addr;  // where the processes meet; "" where nobody says
  int master_port = 0;
  std::string store_folder;  // MEGATRON_STORE: meet in a folder instead
  bool rejoins = false;  // MEGATRON_REJOIN: takes the place of a process that was lost, while others go on
};

using Environment = std::function<const char*(const char* name)>;
LaunchPlace find_place(const Environment& environment);

// "node[003-007,12],login" -> "node003".
std::string first_host(const std::string& slurm_list);

}  // namespace megatron
