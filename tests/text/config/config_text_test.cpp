// Runs tests/text/config/*.yaml. Each case gives flags and overrides as one command line, and perhaps a file
// or the fields of --hf and the GPUs, and says what they must give: values, origins and notes, or the lines
// of a refusal.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "megatron/config/resolve/resolve.h"
#include "megatron/config/schema/value.h"
#include "megatron/config/sources/compat.h"
#include "megatron/config/sources/yaml.h"

namespace megatron {
namespace {

// As a shell splits words: blanks separate, quotes keep together.
std::vector<std::string> split_words(const std::string& text) {
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

Purpose purpose_of(const Json& test) {
  const Json* given = test.find("purpose");
  if (!given || given->as_string() == "inspect") return Purpose::inspect;
  return given->as_string() == "training" ? Purpose::training : Purpose::model;
}

// Compute capability and KiB of shared memory of each.
std::vector<GpuFacts> gpus_of(const Json& test) {
  std::vector<GpuFacts> gpus;
  if (const Json* given = test.find("gpus"))
    for (const Json& gpu : given->as_array())
      gpus.push_back({static_cast<int>(gpu[0].as_int()), gpu[1].as_int() * 1024});
  return gpus;
}

Resolved resolve_case(const Json& test) {
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
  const Json* build = test.find("this_build");
  return resolve(sources, {.purpose = purpose_of(test),
                           .allow_unavailable = !build || !build->as_bool(),
                           .gpus = [&] { return gpus_of(test); }});
}

std::string lines(const std::vector<std::string>& items) {
  std::string text;
  for (const std::string& item : items) text += item + "\n";
  return text;
}

std::vector<std::string> texts(const Json* list) {
  std::vector<std::string> result;
  if (list)
    for (const Json& item : list->as_array()) result.push_back(item.as_string());
  return result;
}

// Whether the setting has this value. One that is not built is listed with it, or not at all where that is
// its default.
bool has_value(const Resolved& resolved, const std::string& name, const Json& value) {
  if (name == "data_parallel_size")
    return value == (resolved.data_parallel_size ? Json(*resolved.data_parallel_size) : Json());
  if (const Catalog::Entry* entry = Catalog::all().find(name)) {
    Config config = resolved.config;
    return read_value(*entry->setting, entry->section->object(config)) == value;
  }
  const CompatRow* row = find_compat_key(name);
  EXPECT_NE(row, nullptr) << name;
  for (const Problem& problem : resolved.unavailable)
    if (problem.setting == name) return problem.value == show_value(value);
  return row && row->is_default(value);
}

void run_case(const Json& test) {
  static const std::vector<std::string> known = {"name",      "args",    "file",       "recipe", "hf",
                                                 "processes", "purpose", "this_build", "values", "origins",
                                                 "notes",     "errors",  "gpus"};
  for (const auto& [key, value] : test.as_object())
    ASSERT_NE(std::find(known.begin(), known.end(), key), known.end())
        << "the case has an unknown key " << key;
  ASSERT_TRUE(test.contains("values") || test.contains("origins") || test.contains("errors") ||
              test.contains("notes"));
  try {
    const Resolved resolved = resolve_case(test);
    EXPECT_EQ(lines(texts(test.find("errors"))), "") << "was accepted";
    if (const Json* values = test.find("values")) {
      for (const auto& [name, value] : values->as_object())
        EXPECT_TRUE(has_value(resolved, name, value)) << name << " is not " << value.dump();
    }
    if (const Json* origins = test.find("origins")) {
      for (const auto& [name, origin] : origins->as_object())
        EXPECT_EQ(show_origin(resolved.origin(name)), origin.as_string()) << name;
    }
    if (const Json* notes = test.find("notes")) {
      EXPECT_EQ(lines(resolved.notes), lines(texts(notes)));
    }
  } catch (const Refused& refused) {
    std::vector<std::string> said;
    for (const Problem& problem : refused.problems()) said.push_back(problem.text());
    EXPECT_EQ(lines(said), lines(texts(test.find("errors"))));
  }
}

struct TextFile {
  std::string name;
  Json cases;
};

std::vector<TextFile> text_files() {
  std::vector<TextFile> files;
  for (const auto& entry : std::filesystem::directory_iterator(MEGATRON_SOURCE_DIR "/tests/text/config")) {
    if (entry.path().extension() != ".yaml") continue;
    std::ifstream stream(entry.path());
    const std::string text{std::istreambuf_iterator<char>(stream), {}};
    files.push_back({entry.path().stem(), parse_yaml(text, entry.path().string())});
  }
  std::sort(files.begin(), files.end(), [](const TextFile& a, const TextFile& b) { return a.name < b.name; });
  return files;
}

TEST(ConfigText, AllCases) {
  size_t count = 0;
  for (const TextFile& file : text_files()) {
    for (const Json& test : file.cases.as_array()) {
      SCOPED_TRACE(file.name + ": " + test.at("name").as_string());
      run_case(test);
      ++count;
    }
  }
  EXPECT_GE(count, 100u);
}

}  // namespace
}  // namespace megatron
