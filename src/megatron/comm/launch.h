#pragma once

#include <memory>
#include <optional>
#include <string>

#include "megatron/comm/generation.h"
#include "megatron/comm/rendezvous/environment.h"
#include "megatron/comm/run_ranks.h"

namespace megatron {

enum class Connection : uint8_t { Auto, Threads, Mpi, Tcp, Nccl };
Connection connection_from_name(const std::string& name);  // auto, threads, mpi, tcp or nccl

// Ranks of one process are threads, and each has its memory, contexts and connections.
inline constexpr int kMaxThreadRanks = 4096;

struct LaunchOptions {
  int ranks = 1;  // of this process; the same in all
  Connection comm = Connection::Auto;
  bool cuda = false;  // ranks compute on GPUs, rank i on number i modulo those there are
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  HeartbeatOptions heartbeat;  // over TCP
  LaunchPlace place;           // find_place(std::getenv) for a program
  // Which processes train at first, over TCP; the others wait in reserve. Empty: all of them train.
  TrainingChoice training = {};
  std::optional<int64_t> to_gather = {};  // a number that all processes gather at first, over TCP
};

// The ranks of a run: threads of this process alone, or of several that mpirun, torchrun or srun started.
// Process p has the ranks p · ranks … (p + 1) · ranks − 1. Lives from the meeting of the processes until all
// of them leave.
//
// GPUs: NCCL where every rank turns out to have one of its own, whatever their numbers; otherwise threads and
// processes move the memory themselves.
class Launch {
 public:
  explicit Launch(const LaunchOptions& options);
  ~Launch();
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  int world_size() const;
  bool is_first() const;                         // this process has rank 0
  const std::string& how() const;                // "2 processes x 2 threads over MPI"
  const std::vector<int64_t>& gathered() const;  // the number of this process, and over TCP those of others

  // As run_ranks, with every process calling it the same number of times.
  void run(const RankFunction& fn);

  const Generation& generation() const;
  // After run() threw on all processes: agrees with them on who is left and makes their world, in which run()
  // may be called again where generation().trains(). A PeerLost where this process is left out, or too few
  // are left to train; over MPI always, which cannot lose a process.
  void rendezvous(const RendezvousOptions& options);
  // A process in reserve waits until the others meet again (true) or have ended (false). A PeerLost where
  // they ended after a fault. So does one that takes the place of a lost one (LaunchPlace::rejoins).
  bool wait_in_reserve();
  // Whether such a one waits: the next rendezvous() takes it in. From any thread.
  bool has_newcomer() const;
  // When this process first knew that a rank of this generation is gone, or that all have to stop. Nothing
  // where ranks are threads of one process. From any thread.
  std::optional<std::chrono::steady_clock::time_point> noticed() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace megatron
