#include "megatron/autograd/op_listener.h"

#include <fmt/core.h>

namespace megatron {

std::string_view phase_name(Phase phase) {
  constexpr std::string_view names[] = {"forward", "backward", "weight gradient", "other"};
  return names[static_cast<size_t>(phase)];
}

std::string to_string(const OpKey& key) {
  std::string text = fmt::format("{} {}", key.name, phase_name(key.phase));
  for (size_t i = 0; i < key.count; ++i) {
    const OpKey::Operand& operand = key.operands[i];
    text += fmt::format(" {}[", name_of(operand.dtype));
    for (int d = 0; d < operand.shape.rank(); ++d)
      text += fmt::format("{}{}", d > 0 ? "," : "", operand.shape[d]);
    text += "]";
  }
  return text;
}

}  // namespace megatron
