// What libFuzzer calls, for the target that the build names.
#include <algorithm>

#include "fuzz/targets/targets.h"
#include "support/temp_dir.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace megatron::testing;
  static const TempDir folder;  // of the process: libFuzzer has no other place for it
  const auto targets = fuzz_targets();
  const auto target = std::find_if(targets.begin(), targets.end(),
                                   [](const FuzzTarget& t) { return t.name == MEGATRON_FUZZ_TARGET; });
  feed(*target, {reinterpret_cast<const char*>(data), size}, folder.path());
  return 0;
}
