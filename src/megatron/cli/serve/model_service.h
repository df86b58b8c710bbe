#pragma once

#include <functional>

#include "megatron/cli/common/model_arguments.h"
#include "megatron/server/serve.h"

namespace megatron {

// Flags that `serve` and `chat` share.
std::vector<CommandFlag> service_flags();

// Loads the model that a command line names, on all ranks, and serves it until options.is_over(). Of
// `options` the parts that flags say are filled in here.
void serve_model(Invocation& invocation, const CommandLine& line, std::string_view command,
                 ServeOptions options);

}  // namespace megatron
