#pragma once

#include <memory>

#include "megatron/base/log.h"
#include "megatron/training/run/callback.h"

namespace megatron {

// Megatron-LM's curves in the folder of --tensorboard-dir, written by the first rank: by iteration, and most
// of them also by samples ("lm loss vs samples").
std::shared_ptr<Callback> tensorboard_log(const Log& log);

}  // namespace megatron
