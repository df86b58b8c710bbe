#include "megatron/server/constraint_cache.h"

#include <algorithm>

namespace megatron {

std::shared_ptr<const Constraint> ConstraintCache::get(const std::string& key, const Compile& compile) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find(entries_, key, &Entry::key);
    if (found != entries_.end()) {
      entries_.splice(entries_.begin(), entries_, found);
      return entries_.front().constraint;
    }
  }
  std::shared_ptr<const Constraint> made = compile();  // others go on meanwhile
  const std::lock_guard lock(mutex_);
  entries_.push_front({key, made});
  if (entries_.size() > size_) entries_.pop_back();
  return made;
}

}  // namespace megatron
