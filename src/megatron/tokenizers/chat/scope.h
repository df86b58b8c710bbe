#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "megatron/tokenizers/chat/value.h"

namespace megatron::chat {

// The names that a template, a loop's pass, a macro or a `with` defines, inside those around it. Names are
// views of the parsed template.
class Scope {
 public:
  Scope(Budget& budget, std::shared_ptr<Scope> parent) : parent_(std::move(parent)), charge_(budget, 128) {}

  void set(std::string_view name, Value value) {
    for (auto& [key, held] : names_)
      if (key == name) return void(held = std::move(value));
    names_.emplace_back(name, std::move(value));
  }
  // Null where neither this scope nor one around it knows the name.
  const Value* find(std::string_view name) const {
    for (const Scope* scope = this; scope; scope = scope->parent_.get())
      for (const auto& [key, value] : scope->names_)
        if (key == name) return &value;
    return nullptr;
  }
  void clear() { names_.clear(); }
  const std::shared_ptr<Scope>& parent() const { return parent_; }

  bool captured = false;  // by a macro, so that it may outlive its statement

 private:
  std::shared_ptr<Scope> parent_;
  std::vector<std::pair<std::string_view, Value>> names_;
  Charge charge_;
};
using ScopePtr = std::shared_ptr<Scope>;

}  // namespace megatron::chat
