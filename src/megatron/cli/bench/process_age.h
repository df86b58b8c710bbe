#pragma once

namespace megatron {

// Seconds since this process was started, its loading included.
double process_age();

}  // namespace megatron
