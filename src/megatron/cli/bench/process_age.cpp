#include "megatron/cli/bench/process_age.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

namespace megatron {
namespace {

const auto kLoaded = std::chrono::steady_clock::now();

// The 22nd field of the process's line: when it began, in ticks since the machine did. The second field, its
// name in brackets, may hold anything.
double began() {
  std::ifstream file("/proc/self/stat");
  const std::string line{std::istreambuf_iterator<char>(file), {}};
  std::istringstream fields(line.substr(std::min(line.size(), line.rfind(')') + 1)));
  std::string field;
  for (int i = 3; i <= 22; ++i)
    if (!(fields >> field)) return -1;
  return std::stod(field) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

}  // namespace

double process_age() {
  const double loaded = std::chrono::duration<double>(std::chrono::steady_clock::now() - kLoaded).count();
  timespec now{};
  const double start = began();
  if (start < 0 || clock_gettime(CLOCK_BOOTTIME, &now) != 0) return loaded;
  const double age = static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9 - start;
  // Where clocks of a container disagree, what this program saw itself is all that is known.
  return age > loaded && age < loaded + 60 ? age : loaded;
}

}  // namespace megatron
