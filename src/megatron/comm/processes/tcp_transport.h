#pragma once

#include "megatron/comm/processes/transport.h"
#include "megatron/comm/rendezvous/store.h"

namespace megatron {

// Connects every two processes; they find each other through the store.
std::unique_ptr<Transport> make_tcp_transport(Store& store, int process, int processes,
                                              std::chrono::milliseconds timeout);

}  // namespace megatron
