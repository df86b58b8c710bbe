#pragma once

#include "megatron/comm/processes/transport.h"
#include "megatron/comm/rendezvous/store.h"

namespace megatron {

// Connects every two processes; they find each other through the store. One that `rejoins` takes the place of
// a process that was lost, and connects to those that are left; the others are lost to it from the start.
std::unique_ptr<Transport> make_tcp_transport(Store& store, int process, int processes,
                                              std::chrono::milliseconds timeout, bool rejoins = false);

}  // namespace megatron
