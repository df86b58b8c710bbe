#include "megatron/comm/launch.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "megatron/base/counted.h"
#include "megatron/comm/mpi_transport.h"
#include "megatron/comm/nccl_group.h"
#include "megatron/comm/processes/process_backend.h"
#include "megatron/comm/processes/tcp_transport.h"

namespace megatron {
namespace {

constexpr std::array<std::string_view, 5> kChoices{"auto", "threads", "mpi", "tcp", "nccl"};

bool uses_nccl(const LaunchOptions& options) {
  if (options.comm == Connection::Nccl) return true;
  return options.comm == Connection::Auto && options.cuda && nccl_is_built_in() &&
         options.ranks * options.place.processes > 1;
}

// MPI where mpirun started us and can be used, TCP where somebody says where to meet. With NCCL it is what
// the GPUs meet through.
Connection chosen(const LaunchOptions& options) {
  const LaunchPlace& place = options.place;
  const bool meets = !place.master_addr.empty() || !place.store_folder.empty();
  Connection choice = options.comm;
  if (choice == Connection::Auto || choice == Connection::Nccl) {
    const bool mpi = place.starter == LaunchPlace::Starter::OpenMpi && mpi_is_built_in();
    choice = place.processes == 1 ? Connection::Threads : mpi ? Connection::Mpi : Connection::Tcp;
  }
  if (choice == Connection::Threads && place.processes > 1)
    throw ConfigError(fmt::format(
        "--comm threads connects the ranks of one process, but there are {} processes; leave it out, which "
        "finds MPI or TCP",
        place.processes));
  if (choice == Connection::Tcp && place.processes > 1 && !meets)
    throw ConfigError(
        "the processes do not know where to meet: set MASTER_ADDR and MASTER_PORT, or MEGATRON_STORE to a "
        "folder that all of them see");
  return choice;
}

}  // namespace

Connection connection_from_name(const std::string& name) {
  const auto found = std::find(kChoices.begin(), kChoices.end(), name);
  if (found == kChoices.end())
    throw UsageError(fmt::format("--comm {}: choose auto, threads, mpi, tcp or nccl", name));
  return static_cast<Connection>(found - kChoices.begin());
}

struct Launch::Impl {
  LaunchOptions options;
  std::string how;
  bool nccl = false, over_mpi = false;
  std::unique_ptr<Store> store;  // outlives the wire: other processes may still read it
  std::shared_ptr<Wire> wire;    // null: this process is alone
  Generation generation;
  std::shared_ptr<ProcessWorld> world;
  std::vector<ProcessGroup> groups;  // of the ranks here, kept from run to run
  std::vector<int64_t> gathered;

  void gather_numbers();
  void make_world(uint32_t number, const std::vector<int>& processes, const TrainingChoice& choice);
};

// The store gathers one number of each process, so that all know the same before any world is made.
void Launch::Impl::gather_numbers() {
  if (!options.to_gather) return;
  gathered = {*options.to_gather};
  if (!store) return;
  const auto key = [](int process) { return fmt::format("gathered/{}", process); };
  // The others go by the number of the process whose place this one takes.
  if (!options.place.rejoins) store->set(key(options.place.process), std::to_string(*options.to_gather));
  for (int process = 0; process < options.place.processes; ++process)
    if (process != options.place.process || options.place.rejoins)
      gathered.push_back(std::stoll(store->get(key(process))));
}

void Launch::Impl::make_world(uint32_t number, const std::vector<int>& processes,
                              const TrainingChoice& choice) {
  const std::vector<int> training = choice ? choice(processes) : processes;
  if (training.empty())
    throw PeerLost(fmt::format("the {} processes that are left cannot train this layout: start the job again",
                               processes.size()));
  generation = {.number = number, .processes = training, .reserve = {}};
  for (const int process : processes)
    if (std::find(training.begin(), training.end(), process) == training.end())
      generation.reserve.push_back(process);
  generation.world = static_cast<int>(training.size()) * options.ranks;
  const auto own = std::find(training.begin(), training.end(), wire->process());
  generation.first_rank =
      own == training.end() ? -1 : static_cast<int>(own - training.begin()) * options.ranks;
  if (!generation.trains()) return;
  world = std::make_shared<ProcessWorld>(wire, generation, options.ranks, options.timeout);
  for (int i = 0; i < options.ranks; ++i)
    groups.push_back(process_world_group(world, generation.first_rank + i));
}

Launch::Launch(const LaunchOptions& options) : impl_(std::make_unique<Impl>()) {
  require(options.ranks >= 1, "launch: {} ranks", options.ranks);
  if (options.ranks > kMaxThreadRanks)
    throw ConfigError(
        fmt::format("--ranks {}: a process has at most {} ranks; start several processes (mpirun, srun or "
                    "torchrun), each with its share",
                    options.ranks, kMaxThreadRanks));
  impl_->options = options;
  impl_->nccl = uses_nccl(options);
  const LaunchPlace& place = options.place;
  const Connection choice = chosen(options);
  if (choice == Connection::Threads) {
    impl_->gather_numbers();
    impl_->generation = {.processes = {0}, .reserve = {}, .world = options.ranks};
    impl_->how = fmt::format("{} of one process{}", counted(options.ranks, "rank"),
                             impl_->nccl ? ", NCCL between GPUs of their own" : "");
    return;
  }
  std::unique_ptr<Transport> transport;
  if (choice == Connection::Mpi) {
    transport = make_mpi_transport();
    impl_->over_mpi = true;
  } else {
    if (place.rejoins && place.process == 0 && place.store_folder.empty())
      throw ConfigError(
          "MEGATRON_REJOIN: the first process, which is gone, kept the addresses of the others; set "
          "MEGATRON_STORE to a folder for all processes when the run is started");
    impl_->store = place.store_folder.empty() ? make_tcp_store(place.master_addr, place.master_port,
                                                               place.process == 0, options.timeout)
                                              : make_file_store(place.store_folder, options.timeout);
    impl_->gather_numbers();
    transport =
        make_tcp_transport(*impl_->store, place.process, place.processes, options.timeout, place.rejoins);
  }
  impl_->how = fmt::format("{} processes x {} ranks over {}{}", transport->processes(), options.ranks,
                           choice == Connection::Mpi ? "MPI" : "TCP",
                           impl_->nccl ? ", NCCL between GPUs of their own" : "");
  std::vector<int> everyone(static_cast<size_t>(transport->processes()));
  std::iota(everyone.begin(), everyone.end(), 0);
  const bool newcomer = choice == Connection::Tcp && place.rejoins;
  impl_->wire = std::make_shared<Wire>(std::move(transport), options.timeout, newcomer);
  if (choice == Connection::Tcp) impl_->wire->watch(options.heartbeat);
  if (newcomer) {
    impl_->generation = {.processes = everyone, .reserve = {place.process}, .first_rank = -1, .world = 0};
    std::erase(impl_->generation.processes, place.process);
  } else {
    impl_->make_world(0, everyone, options.training);
  }
}

Launch::~Launch() = default;

int Launch::world_size() const { return impl_->generation.world; }
bool Launch::is_first() const { return impl_->generation.first_rank == 0; }
const Generation& Launch::generation() const { return impl_->generation; }
const std::string& Launch::how() const { return impl_->how; }
const std::vector<int64_t>& Launch::gathered() const { return impl_->gathered; }

void Launch::run(const RankFunction& plain) {
  RankFunction fn = plain;
  if (impl_->nccl)
    fn = [&](int rank, ProcessGroup& world) {
      const bool must = impl_->options.comm == Connection::Nccl;
      ProcessGroup gpus =
          nccl_group(world, impl_->options.timeout, must ? SharedGpus::Refuse : SharedGpus::UseWorld);
      try {
        plain(rank, gpus);
      } catch (const CommAborted&) {
        throw;
      } catch (const std::exception& error) {  // told while the communicators are still there
        world.abort(error.what());
        throw;
      }
    };
  if (!impl_->wire) return run_ranks(impl_->options.ranks, fn, {impl_->options.timeout});
  ProcessWorld& world = *impl_->world;
  world.begin_run();
  run_rank_threads(
      {[&](int rank) { return impl_->groups[static_cast<size_t>(rank - world.first_rank())]; },
       [&](const std::string& reason) { world.abort(reason); }, [&](int rank) { world.retire(rank); }},
      world.first_rank(), impl_->options.ranks, fn);
}

void Launch::rendezvous(const RendezvousOptions& options) {
  if (!impl_->wire) {
    ++impl_->generation.number;
    return;
  }
  if (impl_->over_mpi)
    throw PeerLost("MPI cannot go on without a process: the launcher has to start the job again");
  impl_->groups.clear();
  impl_->world.reset();
  const uint32_t next = impl_->wire->next_generation(impl_->generation);
  impl_->make_world(next, impl_->wire->meet(next, options.grace), options.training);
}

bool Launch::has_newcomer() const { return impl_->wire && impl_->wire->has_newcomer(); }
std::optional<std::chrono::steady_clock::time_point> Launch::noticed() const {
  return impl_->world ? impl_->world->noticed() : std::nullopt;
}
bool Launch::wait_in_reserve() { return impl_->wire && impl_->wire->wait_for_call(impl_->generation); }

}  // namespace megatron
