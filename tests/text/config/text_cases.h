// The cases of tests/text/*/*.yaml and how they are read.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "megatron/config/resolve/resolve.h"
#include "megatron/config/sources/yaml.h"

namespace megatron::testing {

// As a shell splits words: blanks separate, quotes keep together.
inline std::vector<std::string> split_words(const std::string& text) {
  std::vector<std::string> words;
  std::string word;
  bool inside = false;
  char quote = 0;
  for (char c : text) {
    if (quote != 0) {
      if (c == quote) {
        quote = 0;
      } else {
        word += c;
      }
    } else if (c == '\'' || c == '"') {
      quote = c;
      inside = true;
    } else if (c == ' ' || c == '\n') {
      if (inside) words.push_back(word);
      word.clear();
      inside = false;
    } else {
      word += c;
      inside = true;
    }
  }
  if (inside) words.push_back(word);
  return words;
}

inline Purpose purpose_of(const Json& test) {
  const Json* given = test.find("purpose");
  if (!given || given->as_string() == "inspect") return Purpose::inspect;
  return given->as_string() == "training" ? Purpose::training : Purpose::model;
}

// Compute capability and KiB of shared memory of each.
inline std::vector<GpuFacts> gpus_of(const Json& test) {
  std::vector<GpuFacts> gpus;
  if (const Json* given = test.find("gpus"))
    for (const Json& gpu : given->as_array())
      gpus.push_back({static_cast<int>(gpu[0].as_int()), gpu[1].as_int() * 1024});
  return gpus;
}

inline Sources sources_of(const Json& test) {
  std::vector<std::string> words;
  if (const Json* args = test.find("args")) words = split_words(args->as_string());
  CommandLine line = parse_command_line(words);
  Sources& sources = line.sources;
  if (const Json* file = test.find("file")) sources.file = ConfigText{"file.yaml", file->as_string()};
  if (const Json* recipe = test.find("recipe"))
    sources.recipe = ConfigText{"recipe.yaml", recipe->as_string()};
  if (const Json* hf = test.find("hf")) {
    sources.hf = *hf;
    sources.hf_origin = "hf_dir";
  }
  if (const Json* processes = test.find("processes")) sources.processes = processes->as_int();
  EXPECT_TRUE(line.words.empty()) << line.words.front();
  return sources;
}

inline ResolveOptions options_of(const Json& test) {
  const Json* build = test.find("this_build");
  return {.purpose = purpose_of(test),
          .allow_unavailable = !build || !build->as_bool(),
          .gpus = [gpus = gpus_of(test)] { return gpus; }};
}

struct TextFile {
  std::string name;
  Json cases;
};

inline std::vector<TextFile> text_files(const std::string& folder = "config") {
  std::vector<TextFile> files;
  for (const auto& entry : std::filesystem::directory_iterator(MEGATRON_SOURCE_DIR "/tests/text/" + folder)) {
    if (entry.path().extension() != ".yaml") continue;
    std::ifstream stream(entry.path());
    const std::string text{std::istreambuf_iterator<char>(stream), {}};
    files.push_back({entry.path().stem(), parse_yaml(text, entry.path().string())});
  }
  std::sort(files.begin(), files.end(), [](const TextFile& a, const TextFile& b) { return a.name < b.name; });
  return files;
}

}  // namespace megatron::testing
