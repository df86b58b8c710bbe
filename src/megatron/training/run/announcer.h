#pragma once

#include <memory>
#include <string>
#include <vector>

#include "megatron/training/run/callback.h"

namespace megatron {

// Tells the callbacks of a run what happens on this rank.
class Announcer {
 public:
  Announcer(const std::vector<std::shared_ptr<Callback>>& callbacks, RunView& view)
      : callbacks_(callbacks), view_(view) {}

  void announce(RunEvent event) const {
    for (const auto& callback : callbacks_) callback->on(event, view_);
  }

  // A line for people, on the first rank alone; "" tells nothing.
  void tell(const std::string& line) const {
    if (!view_.is_first_rank() || line.empty()) return;
    for (const auto& callback : callbacks_) callback->on_message(line);
  }

  RunView& view() const { return view_; }

 private:
  const std::vector<std::shared_ptr<Callback>>& callbacks_;
  RunView& view_;
};

}  // namespace megatron
