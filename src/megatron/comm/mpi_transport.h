#pragma once

#include "megatron/comm/processes/transport.h"

namespace megatron {

// Implemented by comm/mpi, or by comm/none in a build without MPI.
bool mpi_is_built_in();
// The processes that mpirun or srun started together. One transport per process, ever: MPI cannot begin
// twice.
std::unique_ptr<Transport> make_mpi_transport();

}  // namespace megatron
