#include <array>

#include "megatron/cli/command.h"
#include "megatron/cli/groups_command.h"

namespace megatron {

std::span<const Command> commands() {
  static constexpr std::array table{
      Command{"groups", "every process group of a parallel layout, as lists of ranks", groups_help,
              run_groups},
  };
  return table;
}

}  // namespace megatron
