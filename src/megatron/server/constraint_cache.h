#pragma once

#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>

#include "megatron/inference/constraint.h"

namespace megatron {

// Compiled constraints by their description; the least recently used is forgotten first.
class ConstraintCache {
 public:
  using Compile = std::function<std::shared_ptr<const Constraint>()>;

  explicit ConstraintCache(size_t size = 32) : size_(size) {}
  std::shared_ptr<const Constraint> get(const std::string& key, const Compile& compile);

 private:
  struct Entry {
    std::string key;
    std::shared_ptr<const Constraint> constraint;
  };
  size_t size_;
  std::mutex mutex_;
  std::list<Entry> entries_;  // the last used first
};

}  // namespace megatron
