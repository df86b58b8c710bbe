#pragma once

#include "megatron/comm/process_group.h"
#include "megatron/config/config.h"

namespace megatron {

// A ConfigError on every rank where processes were given other settings: they would compute something that
// nobody asked for, or wait for each other. It names each setting with both values. Where files lie may
// differ.
void require_same_settings(const Config& config, const ProcessGroup& world);

}  // namespace megatron
