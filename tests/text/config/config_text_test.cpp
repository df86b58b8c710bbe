// Runs tests/text/config/*.yaml. Each case gives flags and overrides as one command line, and perhaps a file
// or the fields of --hf and the GPUs, and says what they must give: values, origins and notes, or the lines
// of a refusal.

#include <gtest/gtest.h>

#include <algorithm>

#include "megatron/config/resolve/resolve.h"
#include "megatron/config/schema/value.h"
#include "megatron/config/sources/compat.h"
#include "text/config/text_cases.h"

namespace megatron::testing {
namespace {

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
    const Resolved resolved = resolve(sources_of(test), options_of(test));
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
}  // namespace megatron::testing
