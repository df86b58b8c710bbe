#include "megatron/base/error.h"
#include "megatron/comm/mpi_transport.h"

namespace megatron {

bool mpi_is_built_in() { return false; }

std::unique_ptr<Transport> make_mpi_transport() {
  throw ConfigError(
      "this build has no MPI: install Open MPI's development files and build again, or set MASTER_ADDR and "
      "MASTER_PORT to connect the processes by TCP");
}

}  // namespace megatron
