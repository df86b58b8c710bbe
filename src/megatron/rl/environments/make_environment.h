#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "megatron/rl/environments/arguments.h"
#include "megatron/rl/environments/environment.h"

namespace megatron::rl {

// Makes the environment of an agent type, "CountdownAgent" say. Null where something was rejected.
std::shared_ptr<const Environment> make_environment(std::string_view agent_type,
                                                    EnvironmentArguments& arguments, bool evaluation_only);

}  // namespace megatron::rl
