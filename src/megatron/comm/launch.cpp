#include "megatron/comm/launch.h"

#include <algorithm>
#include <array>

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
  bool nccl = false;
  std::unique_ptr<Store> store;  // outlives the world: other processes may still read it
  std::shared_ptr<ProcessWorld> world;
  std::vector<ProcessGroup> groups;  // of the ranks here, kept from run to run
};

Launch::Launch(const LaunchOptions& options) : impl_(std::make_unique<Impl>()) {
  require(options.ranks >= 1, "launch: {} ranks", options.ranks);
  impl_->options = options;
  impl_->nccl = uses_nccl(options);
  const LaunchPlace& place = options.place;
  const Connection choice = chosen(options);
  if (choice == Connection::Threads) {
    impl_->how = fmt::format("{} rank{} of one process{}", options.ranks, options.ranks == 1 ? "" : "s",
                             impl_->nccl ? ", NCCL between GPUs of their own" : "");
    return;
  }
  std::unique_ptr<Transport> transport;
  if (choice == Connection::Mpi) {
    transport = make_mpi_transport();
  } else {
    impl_->store = place.store_folder.empty() ? make_tcp_store(place.master_addr, place.master_port,
                                                               place.process == 0, options.timeout)
                                              : make_file_store(place.store_folder, options.timeout);
    transport = make_tcp_transport(*impl_->store, place.process, place.processes, options.timeout);
  }
  impl_->how = fmt::format("{} processes x {} ranks over {}{}", transport->processes(), options.ranks,
                           choice == Connection::Mpi ? "MPI" : "TCP",
                           impl_->nccl ? ", NCCL between GPUs of their own" : "");
  impl_->world = std::make_shared<ProcessWorld>(std::move(transport), options.ranks, options.timeout);
  for (int i = 0; i < options.ranks; ++i)
    impl_->groups.push_back(process_world_group(impl_->world, impl_->world->first_rank() + i));
}

Launch::~Launch() = default;

int Launch::world_size() const { return impl_->world ? impl_->world->size() : impl_->options.ranks; }
bool Launch::is_first() const { return !impl_->world || impl_->world->first_rank() == 0; }
const std::string& Launch::how() const { return impl_->how; }

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
  if (!impl_->world) return run_ranks(impl_->options.ranks, fn, {impl_->options.timeout});
  ProcessWorld& world = *impl_->world;
  world.begin_run();
  run_rank_threads(
      {[&](int rank) { return impl_->groups[static_cast<size_t>(rank - world.first_rank())]; },
       [&](const std::string& reason) { world.abort(reason); }, [&](int rank) { world.retire(rank); }},
      world.first_rank(), impl_->options.ranks, fn);
}

}  // namespace megatron
