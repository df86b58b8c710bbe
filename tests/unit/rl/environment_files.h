#pragma once

#include <string>

#include "megatron/base/json.h"
#include "support/temp_dir.h"

namespace megatron::rl {

// `count` rows "PREFIX0", "PREFIX1", … whose answers are their numbers.
inline std::string numbered_rows(const std::string& prefix, int count) {
  std::string text;
  for (int i = 0; i < count; ++i)
    text += Json(Json::Object{{"prompt", prefix + std::to_string(i)}, {"answer", i}}).dump() + "\n";
  return text;
}

// Writes environments.yaml and returns its path.
inline std::string write_environments(const testing::TempDir& dir, const std::string& yaml) {
  testing::write_text(dir / "environments.yaml", yaml);
  return dir / "environments.yaml";
}

}  // namespace megatron::rl
