#include "megatron/training/run/unlearned_rows.h"

#include <memory>
#include <mutex>
#include <set>

namespace megatron {
namespace {

class UnlearnedRows {
 public:
  UnlearnedRows(const Log& log, int64_t seq_length) : log_(log), seq_length_(seq_length) {}
  void operator()(const std::string& origin) {
    const std::lock_guard lock(mutex_);
    if (named_.size() == kMost || !named_.insert(origin).second) return;
    log_.warning(
        "{}: no token of this row is learned, in a sequence of {}; check that it has an answer, or "
        "give a longer --seq-length{}",
        origin, seq_length_, named_.size() == kMost ? " (further such rows are not named)" : "");
  }

 private:
  static constexpr size_t kMost = 5;
  Log log_;
  int64_t seq_length_;
  std::mutex mutex_;
  std::set<std::string> named_;
};

}  // namespace

std::function<void(const std::string& origin)> unlearned_rows(const Log& log, int64_t seq_length) {
  return [told = std::make_shared<UnlearnedRows>(log, seq_length)](const std::string& origin) {
    (*told)(origin);
  };
}

}  // namespace megatron
