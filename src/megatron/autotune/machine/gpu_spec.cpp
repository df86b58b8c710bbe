#include "megatron/autotune/machine/gpu_spec.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>
#include <vector>

#include "megatron/base/error.h"

namespace megatron::autotune {
namespace {

std::string lower_case(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  return result;
}

}  // namespace

std::span<const GpuSpec> gpu_specs() {
  // name, TFLOP/s of 16, 8 and 4 bits, GiB, TB/s, NVLink GB/s, NIC GB/s, SMs, sustained, calibrated, domain,
  // GB/s to the host
  static const std::array table{
      GpuSpec{"A100", 312, 0, 0, 79.2, 2.039, 300, 25, 108, 1, true, 8, 25},
      GpuSpec{"A100-40GB", 312, 0, 0, 39.4, 1.555, 300, 25, 108, 1, true, 8, 25},
      GpuSpec{"H100", 989, 1979, 0, 79.6, 3.35, 450, 50, 132, 1, true, 8},
      // 500 W sustain about four fifths of the clock of 700 W.
      GpuSpec{"H100-96GB-HBM2e-500W", 810, 1620, 0, 95.0, 2.4, 450, 50, 132, 1, true, 8},
      GpuSpec{"H200", 989, 1979, 0, 139.8, 4.8, 450, 50, 132, 1, true, 8},
      GpuSpec{"B200", 2250, 4500, 9000, 178.4, 7.7, 900, 50, 148, 0.86, false, 8},
      GpuSpec{"B300", 2250, 4500, 13500, 268.0, 7.7, 900, 100, 148, 1, false, 8},
      GpuSpec{"GB200", 2500, 5000, 10000, 184.0, 8.0, 900, 50, 152, 0.84, false, 64, 200},
      GpuSpec{"GB300", 2500, 5000, 15000, 276.0, 8.0, 900, 100, 152, 1, false, 64, 200},
      GpuSpec{"RTX4090", 165, 330, 0, 23.5, 1.008, 25, 12.5, 128, 1, false, 8, 25},
      GpuSpec{"CPU", 0.4, 0, 0, 22.0, 0.04, 10, 1.2, 2, 1, false, 8, 10},
  };
  return table;
}

const GpuSpec& gpu_spec(std::string_view name) {
  std::vector<std::string> known;
  for (const GpuSpec& spec : gpu_specs()) {
    if (lower_case(spec.name) == lower_case(name)) return spec;
    known.push_back(spec.name);
  }
  std::string text;
  for (const std::string& other : known) text += (text.empty() ? "" : ", ") + other;
  throw ConfigError(fmt::format("GPU '{}': not known (known: {}); describe it in cluster.yaml", name, text));
}

bool is_of_kind(std::string_view device, std::string_view kind) {
  const std::string wanted = lower_case(kind.substr(0, kind.find('-')));
  // Words of the device, and each with the one in front of it: RTX and 4090.
  std::string last, word;
  for (const char c : lower_case(device) + " ") {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      word += c;
      continue;
    }
    if (!word.empty() && (word == wanted || last + word == wanted)) return true;
    last = std::exchange(word, "");
  }
  return !device.empty() && lower_case(device) == lower_case(kind);
}

}  // namespace megatron::autotune
