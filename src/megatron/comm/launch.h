#pragma once

#include <memory>
#include <string>

#include "megatron/comm/rendezvous/environment.h"
#include "megatron/comm/run_ranks.h"

namespace megatron {

enum class Connection : uint8_t { Auto, Threads, Mpi, Tcp, Nccl };
Connection connection_from_name(const std::string& name);  // auto, threads, mpi, tcp or nccl

struct LaunchOptions {
  int ranks = 1;  // of this process; the same in all
  Connection comm = Connection::Auto;
  bool cuda = false;  // ranks compute on GPUs, rank i on number i modulo those there are
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  LaunchPlace place;  // find_place(std::getenv) for a program
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
  bool is_first() const;           // this process has rank 0
  const std::string& how() const;  // "2 processes x 2 threads over MPI"

  // As run_ranks, with every process calling it the same number of times.
  void run(const RankFunction& fn);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace megatron
