#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "megatron/base/json.h"
#include "megatron/checkpoint/safetensors_directory.h"
#include "support/golden.h"

namespace megatron::testing {

inline std::string source(const std::string& name) { return golden_path("hf_models", name + "/model"); }

// Files, names, shapes, dtypes, bytes and configuration of two Hugging Face directories.
inline void expect_same_model(const std::string& a, const std::string& b) {
  const SafetensorsDirectory x(a), y(b);
  ASSERT_EQ(x.names(), y.names());
  ASSERT_EQ(x.files().size(), y.files().size());
  for (const std::string& name : x.names()) {
    const SafetensorsEntry &p = x.at(name), &q = y.at(name);
    EXPECT_EQ(p.stored, q.stored) << name;
    EXPECT_EQ(p.shape, q.shape) << name;
    const auto u = x.file_of(name).bytes(p), v = y.file_of(name).bytes(q);
    EXPECT_TRUE(std::equal(u.begin(), u.end(), v.begin(), v.end())) << name << " differs";
    EXPECT_EQ(std::filesystem::path(x.file_of(name).path()).filename(),
              std::filesystem::path(y.file_of(name).path()).filename());
  }
  EXPECT_EQ(Json::read(a + "/config.json"), Json::read(b + "/config.json"));
}

}  // namespace megatron::testing
