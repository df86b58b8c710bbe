#include "megatron/cli/gemm_cache.h"

#include <cstdlib>
#include <filesystem>

#include "megatron/base/atomic_file.h"
#include "megatron/base/error.h"
#include "megatron/base/text_file.h"
#include "megatron/kernels/tuning.h"

namespace megatron {
namespace {

std::string cache_folder() {
  if (const char* own = std::getenv("MEGATRON_CACHE")) return own;
  if (const char* shared = std::getenv("XDG_CACHE_HOME")) return std::string(shared) + "/megatron";
  if (const char* home = std::getenv("HOME")) return std::string(home) + "/.cache/megatron";
  return {};
}

}  // namespace

GemmCache::GemmCache(const KernelContext& ctx) {
  measure_gemms(ctx, true);
  if (gemm_choices(ctx).empty()) return;  // nothing to choose on this device
  std::string folder = cache_folder();
  if (folder.empty()) return;
  path_ = folder + "/gemm_choices";
  try {
    known_ = read_text_file(path_);
    use_gemm_choices(ctx, known_);
  } catch (const Error&) {  // the first run
  }
}

void GemmCache::save(const KernelContext& ctx) const {
  if (path_.empty()) return;
  std::string now = gemm_choices(ctx);
  if (now.size() == known_.size()) return;  // choices are only ever added
  try {
    std::error_code ignored;
    std::filesystem::create_directories(std::filesystem::path(path_).parent_path(), ignored);
    write_file_atomically(path_, now);
  } catch (const Error&) {
  }
}

}  // namespace megatron
