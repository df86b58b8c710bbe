#pragma once

#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "megatron/base/log.h"
#include "megatron/resilience/remote_hosts.h"

namespace megatron {

// What the exit codes of a job's processes say.
enum class JobVerdict { done, retry, give_up };

// How one process ended.
struct ProcessEnd {
  int code = 0;    // as it exited; 0 where a signal ended it
  int signal = 0;  // that ended it; 0: none

  int exit_code() const { return signal ? 128 + signal : code; }
};

// Done where some processes ended well and the others were lost on the way; retry for 16, 18, 19 and signals;
// give up where any process says that starting again does not help (1, 2, 3, 17, others).
JobVerdict judge(const std::vector<ProcessEnd>& ends);
// "rank 2: killed by SIGKILL; ranks 0 1 3: lost a peer (exit code 19)", with ranks from `first_rank` on.
std::string tell_ends(const std::vector<ProcessEnd>& ends, int first_rank = 0);
// What the job ends with: 0, or the code that explains most.
int exit_code_of(const std::vector<ProcessEnd>& ends);

struct LaunchJob {
  int processes = 1;
  std::vector<std::string> command;
  int max_restarts = 3;
  double backoff = 1;       // seconds before the first restart, doubled for each further one
  double grace = 30;        // seconds for the others once a process has ended the run
  std::string log_folder;   // files of what each rank of the job said; "": none
  std::vector<int> shown;   // ranks of the job whose lines are shown; empty: all
  std::string filter;       // lines that hold this text are shown; "": all
  int master_port = 0;      // 0: a free one for each start, on one machine
  int nodes = 1, node = 0;  // machines on which such a launcher runs, and which of them this one is
  std::string master_address = "127.0.0.1";  // of machine 0
  // A process that is lost while others go on is started again by itself, to join them, as often as all
  // together may be started again. Processes meet in a folder, which does not go with one of them.
  bool rejoin = false;
  // Where processes are started by ssh; as many as all slots. Empty: on this machine.
  std::vector<RemoteHost> hosts;
  std::vector<std::string> ssh = {"ssh"};  // the program that reaches them, with its options
};

// Starts this machine's or its hosts' processes with torchrun's environment, gathers what they say line by
// line, each with its rank in the job in front, and starts them again as judge() and the limits allow.
// SIGTERM and SIGINT are passed on, and then nothing is started again; a second SIGINT kills the processes.
// Returns the exit code.
int launch_job(const LaunchJob& job, const Log& log, std::FILE* out);

}  // namespace megatron
