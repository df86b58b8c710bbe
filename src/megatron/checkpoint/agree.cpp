#include "megatron/checkpoint/agree.h"

#include "megatron/comm/string_collectives.h"

namespace megatron {

std::vector<std::string> agree(const ProcessGroup& world, std::string_view failure,
                               const std::function<std::string()>& work) {
  constexpr char done = '+', failed = '-', refused = '!';
  std::string own;
  try {
    own = done + work();
  } catch (const CommError&) {
    throw;
  } catch (const ConfigError& error) {
    own = refused + std::string(error.what());
  } catch (const std::exception& error) {
    own = failed + std::string(error.what());
  }
  std::vector<std::string> texts = all_gather_strings(world, own);
  std::string lines, first;
  bool all_refused = true;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    const char mark = texts[rank][0];
    texts[rank].erase(0, 1);
    if (mark == done) continue;
    if (first.empty()) first = texts[rank];
    all_refused = all_refused && mark == refused;
    lines += fmt::format("\n  rank {}: {}", rank, texts[rank]);
  }
  if (lines.empty()) return texts;
  const std::string message = failure.empty() ? first : fmt::format("{}:{}", failure, lines);
  if (all_refused) throw ConfigError(message);
  throw Error(message);
}

}  // namespace megatron
