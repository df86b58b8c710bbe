#include "megatron/training/step/gemm_autotune_cache.h"

#include <algorithm>
#include <filesystem>
#include <unordered_set>

#include "megatron/base/atomic_file.h"
#include "megatron/base/error.h"
#include "megatron/base/hash.h"
#include "megatron/base/text_file.h"
#include "megatron/comm/string_collectives.h"

namespace megatron {
namespace {

std::string_view first_line(std::string_view text) { return text.substr(0, text.find('\n')); }

// The lines after the first; one without an end was cut off.
template <class F>
void for_each_algo(std::string_view text, F&& use) {
  size_t begin = first_line(text).size() + 1;
  for (size_t end; begin < text.size() && (end = text.find('\n', begin)) != text.npos; begin = end + 1)
    use(text.substr(begin, end - begin));
}

int64_t count_algos(std::string_view text) {
  int64_t count = 0;
  for_each_algo(text, [&](std::string_view) { ++count; });
  return count;
}

// Tuned algorithms under one header. The first word of a line is the shape; its first algorithm stays.
class AlgoTable {
 public:
  explicit AlgoTable(std::string_view kind) : text_(std::string(kind) + "\n") {}

  void add(std::string_view text) {
    if (first_line(text) != first_line(text_)) return;
    for_each_algo(text, [&](std::string_view line) {
      if (shapes_.emplace(line.substr(0, line.find(' '))).second) text_.append(line) += '\n';
    });
  }
  // Forgets the text so far, not its shapes: text() then holds what is new.
  void drop_text() { text_.resize(first_line(text_).size() + 1); }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  std::unordered_set<std::string> shapes_;
};

std::string new_algos(const std::string& all, const std::string& known) {
  AlgoTable table(first_line(all));
  table.add(known);
  table.drop_text();
  table.add(all);
  return table.text();
}

std::string read_cached(const std::string& path) {
  try {
    return std::filesystem::exists(path) ? read_text_file(path) : std::string();
  } catch (const std::exception&) {  // an unreadable cache counts as empty
    return {};
  }
}

void write_cached(const std::string& path, const std::string& text) {
  std::error_code ignored;  // writing the file reports it
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  write_file_atomically(path, text);
}

// Another run may have written the file since this one read it: its algorithms stay.
SharedAlgos merge_with_cached(const std::string& folder, std::string_view kind,
                              const std::vector<std::string>& found) {
  SharedAlgos result;
  if (folder.empty()) return result;
  result.path = fmt::format("{}/gemm_autotune_{:016x}", folder, hash_text(kind));
  AlgoTable table(kind);
  table.add(read_cached(result.path));
  const size_t cached = table.text().size();
  for (const std::string& text : found) table.add(text);
  result.algos = table.text();
  if (result.algos.size() == cached) return result;
  try {
    write_cached(result.path, result.algos);
  } catch (const Error& error) {
    result.problem = error.what();
  }
  return result;
}

}  // namespace

SharedAlgos share_tuned_algos(const ProcessGroup& world, const std::string& folder,
                              const std::string& found) {
  const std::vector<std::string> all = all_gather_strings(world, found);
  SharedAlgos own;
  std::unordered_set<std::string_view> kinds;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const std::string_view kind = first_line(all[rank]);
    if (kind.empty() || !kinds.insert(kind).second) continue;
    SharedAlgos shared;
    if (static_cast<int>(rank) == world.rank()) shared = merge_with_cached(folder, kind, all);
    shared.algos = broadcast_text(world, std::move(shared.algos), static_cast<int>(rank));
    if (kind == first_line(found)) own = std::move(shared);
  }
  return own;
}

GemmAutotuneCache::GemmAutotuneCache(RankContext& ctx, const ProcessGroup& world, std::string folder)
    : ctx_(ctx), world_(world), folder_(std::move(folder)) {
  const std::string kind(first_line(ctx_.kernels->gemm_autotune.tuned(ctx_.kernel_context())));
  const SharedAlgos shared = use_shared(kind);
  if (known_.empty()) return;
  ctx_.kernels->gemm_autotune.set_mode(ctx_.kernel_context(),
                                       world_.size() > 1 ? AutotuneMode::UseLater : AutotuneMode::UseAtOnce);
  if (const int64_t count = count_algos(known_); count > 0)
    news_ = fmt::format("GEMM autotune: loaded {} shapes from {}", count, shared.path);
}

SharedAlgos GemmAutotuneCache::use_shared(const std::string& found) {
  SharedAlgos shared = share_tuned_algos(world_, folder_, found);
  known_ = shared.algos;
  ctx_.kernels->gemm_autotune.use(ctx_.kernel_context(), known_);
  news_.clear();
  return shared;
}

void GemmAutotuneCache::finish_first_step() {
  ctx_.kernels->gemm_autotune.set_mode(ctx_.kernel_context(), AutotuneMode::Off);
  const int64_t before = count_algos(known_);
  const SharedAlgos shared = use_shared(
      known_.empty() ? "" : new_algos(ctx_.kernels->gemm_autotune.tuned(ctx_.kernel_context()), known_));
  if (const int64_t count = count_algos(known_) - before; count > 0)
    news_ = fmt::format("GEMM autotune: timed {} shapes, {}", count,
                        shared.problem.empty() ? "saved to " + shared.path : "not saved: " + shared.problem);
}

}  // namespace megatron
