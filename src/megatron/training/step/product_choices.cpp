#include "megatron/training/step/product_choices.h"

#include <algorithm>
#include <filesystem>
#include <unordered_set>

#include "megatron/base/atomic_file.h"
#include "megatron/base/error.h"
#include "megatron/base/hash.h"
#include "megatron/base/text_file.h"
#include "megatron/comm/texts.h"
#include "megatron/kernels/gemm_autotune.h"

namespace megatron {
namespace {

std::string_view first_line(std::string_view text) { return text.substr(0, text.find('\n')); }

// The lines after the first; one without an end was cut off.
template <class F>
void for_each_choice(std::string_view text, F&& use) {
  size_t begin = first_line(text).size() + 1;
  for (size_t end; begin < text.size() && (end = text.find('\n', begin)) != text.npos; begin = end + 1)
    use(text.substr(begin, end - begin));
}

int64_t count_choices(std::string_view text) {
  int64_t count = 0;
  for_each_choice(text, [&](std::string_view) { ++count; });
  return count;
}

// Choices of one kind: of each shape, which the first word tells, the one that was added first.
class ChoiceTable {
 public:
  explicit ChoiceTable(std::string_view kind) : text_(std::string(kind) + "\n") {}

  void add(std::string_view text) {
    if (first_line(text) != first_line(text_)) return;
    for_each_choice(text, [&](std::string_view line) {
      if (shapes_.emplace(line.substr(0, line.find(' '))).second) text_.append(line) += '\n';
    });
  }
  // What was added so far is known; only the rest is text from here on.
  void drop_text() { text_.resize(first_line(text_).size() + 1); }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  std::unordered_set<std::string> shapes_;
};

std::string new_choices(const std::string& all, const std::string& known) {
  ChoiceTable table(first_line(all));
  table.add(known);
  table.drop_text();
  table.add(all);
  return table.text();
}

std::string kept_in(const std::string& path) {
  try {
    return std::filesystem::exists(path) ? read_text_file(path) : std::string();
  } catch (const std::exception&) {  // as good as none
    return {};
  }
}

void keep_in(const std::string& path, const std::string& text) {
  std::error_code ignored;  // that it cannot be made is told by the file
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  write_file_atomically(path, text);
}

// Another run may have written since this one read: what it chose holds for both.
SharedChoices join_with_kept(const std::string& folder, std::string_view kind,
                             const std::vector<std::string>& found) {
  SharedChoices result;
  if (folder.empty()) return result;
  result.path = fmt::format("{}/gemm_choices_{:016x}", folder, hash_text(kind));
  ChoiceTable table(kind);
  table.add(kept_in(result.path));
  const size_t kept = table.text().size();
  for (const std::string& text : found) table.add(text);
  result.choices = table.text();
  if (result.choices.size() == kept) return result;
  try {
    keep_in(result.path, result.choices);
  } catch (const Error& error) {
    result.problem = error.what();
  }
  return result;
}

}  // namespace

SharedChoices share_choices(const ProcessGroup& world, const std::string& folder, const std::string& found) {
  const std::vector<std::string> all = gather_texts(world, found);
  SharedChoices own;
  std::unordered_set<std::string_view> kinds;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const std::string_view kind = first_line(all[rank]);
    if (kind.empty() || !kinds.insert(kind).second) continue;
    SharedChoices shared;
    if (static_cast<int>(rank) == world.rank()) shared = join_with_kept(folder, kind, all);
    shared.choices = broadcast_text(world, std::move(shared.choices), static_cast<int>(rank));
    if (kind == first_line(found)) own = std::move(shared);
  }
  return own;
}

ProductChoices::ProductChoices(RankContext& ctx, const ProcessGroup& world, std::string folder)
    : ctx_(ctx), world_(world), folder_(std::move(folder)) {
  const std::string kind(first_line(tuned_gemm_algos(ctx_.kernel_context())));
  const SharedChoices shared = use_shared(kind);
  if (known_.empty()) return;
  autotune_gemms(ctx_.kernel_context(), world_.size() > 1 ? AutotuneMode::UseLater : AutotuneMode::UseAtOnce);
  if (const int64_t count = count_choices(known_); count > 0)
    news_ = fmt::format("matrix products: the fastest kernels for {} shapes are known from {}", count,
                        shared.path);
}

SharedChoices ProductChoices::use_shared(const std::string& found) {
  SharedChoices shared = share_choices(world_, folder_, found);
  known_ = shared.choices;
  use_tuned_gemm_algos(ctx_.kernel_context(), known_);
  news_.clear();
  return shared;
}

void ProductChoices::finish_first_step() {
  autotune_gemms(ctx_.kernel_context(), AutotuneMode::Off);
  const int64_t before = count_choices(known_);
  const SharedChoices shared =
      use_shared(known_.empty() ? "" : new_choices(tuned_gemm_algos(ctx_.kernel_context()), known_));
  if (const int64_t count = count_choices(known_) - before; count > 0)
    news_ = fmt::format(
        "matrix products: kernels for {} shapes were measured, {}", count,
        shared.problem.empty() ? "kept in " + shared.path : "but cannot be kept: " + shared.problem);
}

}  // namespace megatron
