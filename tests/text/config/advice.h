// Reads the advice of a refusal as a person would, and follows it.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "megatron/config/sources/compat.h"
#include "megatron/config/sources/shorthand.h"
#include "megatron/config/sources/string_list.h"
#include "text/config/text_cases.h"

namespace megatron::testing {

using Overrides = std::vector<std::string>;

// One way to follow an advice: each of the tries, or any of them, helps.
struct Way {
  std::vector<Overrides> tries;
  bool all = true;
};

inline std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  for_each_word(text, [&](std::string_view word) {
    while (word.ends_with(',')) word.remove_suffix(1);
    if (!word.empty()) words.emplace_back(word);
  });
  return words;
}

inline std::vector<std::string> split(std::string text, const std::string& separator) {
  std::vector<std::string> parts;
  for (size_t at; (at = text.find(separator)) != std::string::npos; text = text.substr(at + separator.size()))
    parts.push_back(text.substr(0, at));
  parts.push_back(text);
  return parts;
}

inline bool is_number(const std::string& word) {
  return !word.empty() && word.find_first_not_of("0123456789.-+e") == std::string::npos && word != "-";
}

inline bool is_open(const std::string& word) {
  return holds_word("N X T H W DIR FILE FILE:KEY LEFT,RIGHT PATTERN", word);
}

// The names that a flag, a shorthand or a key stands for; none where it is no setting.
inline std::vector<std::string> names_of(const std::string& word) {
  if (word[0] != '-') return Catalog::all().find(word) ? std::vector<std::string>{word} : Overrides{};
  if (const Catalog::Flag* flag = Catalog::all().find_flag(word)) return {flag->entry->setting->name()};
  if (const CompatRow* row = find_compat_flag(word).row) return {std::string(row->name())};
  std::vector<std::string> names;
  if (const Shorthand* shorthand = find_shorthand(word))
    for (const std::string& one : words_of(shorthand->settings))
      names.push_back(one.substr(0, one.find('=')));
  return names;
}

// `name=value` for each value that the words leave open, or the one that they give; none where they make no
// sense.
inline std::vector<std::string> assignments(const std::string& name, std::vector<std::string> words) {
  const Catalog::Entry* entry = Catalog::all().find(name);
  if (!entry) return {name + "=1"};  // refused by its name: no advice
  const Setting& setting = *entry->setting;
  const bool number = setting.type == ValueType::integer || setting.type == ValueType::optional_integer ||
                      setting.type == ValueType::real || setting.type == ValueType::optional_real ||
                      setting.type == ValueType::integers || setting.type == ValueType::reals;
  if (words.empty() && setting.is_boolean()) return {name + "=true"};
  if (words.empty()) words = {"N"};
  if (words.front() == ">" && words.size() == 2) words = {"N"};
  std::vector<std::string> found;
  if (std::all_of(words.begin(), words.end(), is_open)) {
    if (!number && words.front() == "PATTERN") return {};
    for (const char* value : {"1", "2", "3", "4", "8", "16", "32", "64", "128", "0.1", "1e-4"}) {
      std::string text = value;
      const auto parts = static_cast<size_t>(
          words.size() + static_cast<size_t>(std::count(words.front().begin(), words.front().end(), ',')));
      for (size_t i = 1; i < parts; ++i) text += "," + std::string(value);
      found.push_back(name + (setting.is_list() ? "=[" : "=") + (number ? text : "x") +
                      (setting.is_list() ? "]" : ""));
    }
    return found;
  }
  if (number && !std::all_of(words.begin(), words.end(), is_number)) return {};
  if (!setting.choices.empty() && words.size() > 1 && (words.front() == "a" || words.front() == "one"))
    return {};
  if (!setting.is_list() && words.size() > 1) return {};
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ",") + word;
  const bool plain = number || setting.is_boolean() || setting.is_list();
  const char *before = setting.is_list() ? "=["
                       : plain           ? "="
                                         : "='",
             *after = setting.is_list() ? "]"
                      : plain           ? ""
                                        : "'";
  return {name + before + text + after};
}

// Whether a flag is the one that sets a switch to false.
inline bool turns_off(const std::vector<std::string>& names, std::string_view flag) {
  const Catalog::Entry* entry = names.empty() ? nullptr : Catalog::all().find(names.front());
  return entry && std::ranges::find(entry->setting->off_flags, flag) != entry->setting->off_flags.end();
}

inline bool is_given(const Sources& sources, const std::string& name) {
  for (const FlagUse& use : sources.flags)
    for (const std::string& own : names_of(use.name))
      if (own == name) return true;
  return std::any_of(sources.overrides.begin(), sources.overrides.end(),
                     [&](const std::string& text) { return text.starts_with(name + "="); });
}

class Advice {
 public:
  Advice(const Problem& problem, const Sources& sources) : problem_(problem), sources_(sources) {}

  std::vector<Way> ways() const {
    std::string text = problem_.fix;
    if (const size_t open = text.find(" ("); open != std::string::npos)
      text.erase(open, text.find(')', open) + 1 - open);
    if (const size_t from = text.find("as in "); from != std::string::npos)
      text = "use " + text.substr(from + 6);
    std::string verb = "use";
    std::vector<Way> found;
    for (const std::string& part : split(text, ", or "))
      for (std::string one : split_flags(part)) {
        const std::vector<std::string> words = words_of(one);
        if (words.empty()) continue;
        if (const std::string first = words.front();
            first == "use" || first == "add" || first == "give" || first == "leave" || first == "keep") {
          verb = first == "leave" && words.size() > 1 && words[1] == "out" ? "leave out" : first;
          one = one.substr(std::min(one.size(), verb.size() + 1));
        }
        if (Way way = follow(verb, one); !way.tries.empty()) found.push_back(std::move(way));
      }
    return found;
  }

 private:
  // "--a or --b" are two ways.
  static std::vector<std::string> split_flags(const std::string& text) {
    std::vector<std::string> parts = split(text, " or --");
    for (size_t i = 1; i < parts.size(); ++i) parts[i] = "--" + parts[i];
    return parts;
  }

  Way follow(const std::string& verb, const std::string& text) const {
    if (verb == "leave") return {{{"~" + problem_.setting}}};  // leave it out
    std::vector<std::string> names;
    if (verb == "leave out" || verb == "keep") {
      for (const std::string& word : words_of(text))
        for (const std::string& name : names_of(word))
          if (verb == "leave out" || is_given(sources_, name)) names.push_back(name);
      Way way;
      if (verb == "leave out") {
        Overrides all;
        for (const std::string& name : names) all.push_back("~" + name);
        if (!all.empty()) way.tries.push_back(all);
      } else {
        for (const std::string& kept : names) {
          way.tries.emplace_back();
          for (const std::string& name : names)
            if (name != kept) way.tries.back().push_back("~" + name);
        }
      }
      return way;
    }
    return settings(text);
  }

  // "4 with --a 1 and --b without --c", "1, 2 or 4", "a multiple of 8", "at most 3", "section.key=value".
  Way settings(const std::string& text) const {
    std::string own;
    Overrides fixed;
    std::vector<std::vector<std::string>> open;
    std::string flag;
    std::vector<std::string> values;
    bool without = false, understood = true;
    const auto flush = [&] {
      if (flag.empty()) return;
      const std::vector<std::string> names = names_of(flag);
      understood = understood && !names.empty();
      if (without) {
        for (const std::string& name : names) fixed.push_back("~" + name);
      } else if (const Shorthand* shorthand = find_shorthand(flag)) {
        for (const std::string& one : words_of(shorthand->settings)) fixed.push_back(one);
      } else if (turns_off(names, flag)) {
        fixed.push_back(names.front() + "=false");
      } else if (!names.empty()) {
        open.push_back(assignments(names.front(), values));
        understood = understood && !open.back().empty();
      }
      flag.clear();
      values.clear();
    };
    for (const std::string& word : words_of(text)) {
      if (word.starts_with("--")) {
        flush();
        flag = word;
      } else if (word == "with" || word == "and" || word == "without") {
        if (flag.empty() && word == "and") own += " and";
        flush();
        without = word == "without";
      } else if (word == "instead") {
        fixed.push_back("~" + problem_.setting);
      } else if (word.find('=') != std::string::npos && word.find('.') < word.find('=')) {
        fixed.push_back(word);
      } else if (!flag.empty()) {
        values.push_back(word);
      }
    }
    flush();
    // What stands before the first flag are values of the setting itself.
    own = text.substr(0, std::min({text.find(" --"), text.find(" with"), text.size()}));
    if (text.starts_with("--") || (!fixed.empty() && own.find('=') != std::string::npos)) own.clear();
    Way way = own.empty() ? Way{{{}}} : values_of_own(own);
    if (!understood) return {};
    std::vector<Overrides> tries;
    for (const Overrides& one : way.tries) {
      size_t count = 1;
      for (const auto& candidates : open) count = std::max(count, candidates.size());
      if (count > 1) way.all = false;
      for (size_t i = 0; i < count; ++i) {
        Overrides next = one;
        next.insert(next.end(), fixed.begin(), fixed.end());
        for (const auto& candidates : open) next.push_back(candidates[std::min(i, candidates.size() - 1)]);
        if (!next.empty()) tries.push_back(next);
      }
    }
    way.tries = tries;
    return way;
  }

  Way values_of_own(const std::string& text) const {
    Way way;
    const auto add = [&](const std::string& value) {
      for (const std::string& one : assignments(problem_.setting, words_of(value)))
        way.tries.push_back({one});
    };
    if (text.starts_with("a whole number") || text.starts_with("a number")) {
      way.all = false;
      add("N");
      return way;
    }
    for (const char* before : {"at most ", "at least "})
      if (text.starts_with(before)) return add(text.substr(std::string(before).size())), way;
    if (text.starts_with("a multiple of ")) {
      way.all = false;
      for (int64_t k = 1; k <= 16; ++k) add(std::to_string(k * std::stoll(text.substr(14))));
      return way;
    }
    std::string list = text;
    for (size_t at; (at = list.find(" or ")) != std::string::npos;) list.replace(at, 4, ", ");
    for (const std::string& value : split(list, ", ")) add(value);
    return way;
  }

  const Problem& problem_;
  const Sources& sources_;
};

// What is wrong with a configuration.
using ProblemsOf = std::function<std::vector<Problem>(const Sources&)>;

// A problem by its setting and words; numbers may differ.
inline std::string kind_of(const Problem& problem) {
  std::string text = problem.setting + ": " + problem.reason;
  std::erase_if(text, [](unsigned char c) { return std::isdigit(c) != 0; });
  return text;
}

// Why the advice does not help; empty where it does.
inline std::string try_advice(const Problem& problem, const Overrides& more, Sources sources,
                              const ProblemsOf& problems_of) {
  std::set<std::string> before;
  for (const Problem& one : problems_of(sources)) before.insert(kind_of(one));
  sources.overrides.insert(sources.overrides.end(), more.begin(), more.end());
  if (problem.setting[0] == '-')
    std::erase_if(sources.flags, [&](const FlagUse& use) { return use.text() == problem.setting; });
  for (const Problem& one : problems_of(sources))
    if (!before.contains(kind_of(one)) || kind_of(one) == kind_of(problem)) return one.text();
  return "";
}

// Returns how many ways were followed.
inline size_t follow_all(const Problem& problem, const Sources& sources, const ProblemsOf& problems_of) {
  const std::vector<Way> ways = Advice(problem, sources).ways();
  for (const Way& way : ways) {
    size_t helped = 0;
    std::string why;
    for (const Overrides& one : way.tries) {
      const std::string wrong = try_advice(problem, one, sources, problems_of);
      helped += wrong.empty();
      if (!wrong.empty()) {
        why += "\n  ";
        for (const std::string& word : one) why += word + " ";
        why += "-> " + wrong;
      }
    }
    EXPECT_TRUE(way.all ? helped == way.tries.size() : helped > 0) << problem.text() << why;
  }
  return ways.size();
}

}  // namespace megatron::testing
