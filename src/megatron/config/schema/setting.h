#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "megatron/base/json.h"

namespace megatron {

struct Config;

// Something that must be on for a setting to have an effect.
struct Condition {
  bool (*holds)(const Config&);
  std::string_view needs;  // what switches it on: "--num-experts"
};

// What this build lacks of a setting.
struct Limit {
  std::string_view feature;              // "the flex dispatcher"
  std::vector<std::string_view> values;  // those that need it; none: every value but the default
  std::string_view fix = "leave it out";
  bool covers(const Json& value) const;  // of a list, any of its elements
};

// The kinds of value that a setting can have. Everything past the declaration of a row works on these, not on
// C++ types, so that a thousand rows cost one small template each.
enum class ValueType {
  boolean,
  integer,
  real,
  text,  // empty text stands for null
  choice,
  optional_boolean,
  optional_integer,
  optional_real,
  integers,
  reals,
  texts,
  json  // whatever was given: a mapping, or a scalar or list
};

// One setting: how it is called, what it means, where its value lives and what the value may be.
class Setting {
 public:
  std::string_view section;
  std::string_view key;
  std::string_view help;
  ValueType type;

  // Where the value lives in its struct; a choice goes through get_choice and set_choice instead.
  void* (*address)(void* object) = nullptr;
  int (*get_choice)(const void* object) = nullptr;
  void (*set_choice)(void* object, int index) = nullptr;

  // What the value may be.
  double lowest = -std::numeric_limits<double>::infinity();
  double highest = std::numeric_limits<double>::infinity();
  bool lowest_excluded = false;
  std::vector<std::string_view> choices;
  size_t exact_count = 0;  // of a list; 0: any
  bool is_dtype = false;   // torch.bfloat16, bfloat16 and bf16 are the same
  bool infinity_is_none = false;
  bool is_pattern = false;  // a number, or a list that may be written as ([0]*3+[1]*2)

  // How it is called on the command line.
  std::vector<std::string> flags;         // take a value, or switch a boolean on
  std::vector<std::string> off_flags;     // switch a boolean off
  std::vector<std::string_view> aliases;  // other section.key names of the same setting

  std::string_view unset;    // what an unset value becomes, in words
  std::vector<Json> search;  // the tuner's search space
  std::optional<Condition> condition;
  std::optional<Limit> limit;

  Setting& min(double value) { return lowest = value, *this; }
  Setting& max(double value) { return highest = value, *this; }
  Setting& above(double value) { return lowest = value, lowest_excluded = true, *this; }
  Setting& one_of(std::initializer_list<std::string_view> names) { return choices = names, *this; }
  Setting& count(size_t n) { return exact_count = n, *this; }
  Setting& dtype(std::initializer_list<std::string_view> names);
  Setting& or_infinity() { return infinity_is_none = true, *this; }
  Setting& pattern() { return is_pattern = true, *this; }
  Setting& flag(std::string_view name);      // in place of the derived flag
  Setting& off_flag(std::string_view name);  // the first name of those that switch off
  Setting& also(std::string_view name) { return flags.emplace_back(name), *this; }  // a further flag
  Setting& no_flag() { return flags = {}, off_flags = {}, *this; }
  Setting& alias(std::string_view name) { return aliases.push_back(name), *this; }
  Setting& when_unset(std::string_view meaning) { return unset = meaning, *this; }
  Setting& tune(std::initializer_list<Json> values) { return search = values, *this; }
  Setting& when(const Condition& needed) { return condition = needed, *this; }  // else it is noted as idle
  Setting& planned(std::string_view feature, std::initializer_list<std::string_view> values = {},
                   std::string_view fix = "leave it out") {
    return limit = Limit{feature, values, fix}, *this;
  }

  std::string name() const { return std::string(section) + "." + std::string(key); }
  bool is_list() const;
  Setting without_range() const;  // for values that stand for "unset", and for derived ones
  bool is_boolean() const { return type == ValueType::boolean || type == ValueType::optional_boolean; }
};

namespace detail {

template <class>
struct MemberOf;
template <class Owner, class Value>
struct MemberOf<Value Owner::*> {
  using owner = Owner;
  using value = Value;
};

template <class T>
constexpr ValueType value_type() {
  if constexpr (std::is_enum_v<T>) return ValueType::choice;
  if constexpr (std::is_same_v<T, bool>) return ValueType::boolean;
  if constexpr (std::is_same_v<T, int64_t>) return ValueType::integer;
  if constexpr (std::is_same_v<T, double>) return ValueType::real;
  if constexpr (std::is_same_v<T, std::string>) return ValueType::text;
  if constexpr (std::is_same_v<T, std::optional<bool>>) return ValueType::optional_boolean;
  if constexpr (std::is_same_v<T, std::optional<int64_t>>) return ValueType::optional_integer;
  if constexpr (std::is_same_v<T, std::optional<double>>) return ValueType::optional_real;
  if constexpr (std::is_same_v<T, std::vector<int64_t>>) return ValueType::integers;
  if constexpr (std::is_same_v<T, std::vector<double>>) return ValueType::reals;
  if constexpr (std::is_same_v<T, std::vector<std::string>>) return ValueType::texts;
  if constexpr (std::is_same_v<T, Json>) return ValueType::json;
}

}  // namespace detail

// The rows of one struct. Several structs may share a section name: `model` is several structs here.
class Schema {
 public:
  Schema(std::string_view section, std::string_view title) : section_(section), title_(title) {}

  // field<&TrainConfig::micro_batch_size>("micro_batch_size", "samples in one forward pass").min(1);
  template <auto Member>
  Setting& field(std::string_view key, std::string_view help) {
    using Owner = typename detail::MemberOf<decltype(Member)>::owner;
    using Value = typename detail::MemberOf<decltype(Member)>::value;
    Setting& row = add(key, help, detail::value_type<Value>());
    if constexpr (std::is_enum_v<Value>) {
      row.get_choice = [](const void* object) {
        return static_cast<int>(static_cast<const Owner*>(object)->*Member);
      };
      row.set_choice = [](void* object, int index) {
        static_cast<Owner*>(object)->*Member = static_cast<Value>(index);
      };
      for (const char* name : names(Value{})) row.choices.emplace_back(name);
    } else {
      row.address = [](void* object) -> void* { return &(static_cast<Owner*>(object)->*Member); };
    }
    return row;
  }

  std::string_view section() const { return section_; }
  std::string_view title() const { return title_; }
  const std::deque<Setting>& rows() const { return rows_; }

 private:
  Setting& add(std::string_view key, std::string_view help, ValueType type);

  std::string_view section_;
  std::string_view title_;
  std::deque<Setting> rows_;  // keeps references valid while rows are added
};

template <class T>
const Schema& schema() {
  return T::rows();
}

// The text of a choice: name_of(Normalization::rms_norm) is "RMSNorm". Each enum E that stands in a
// configuration has a constexpr names(E) beside it with its values' texts in order; a text "none" also reads
// as null.
template <class E>
constexpr const char* name_of(E value) {
  return names(value)[static_cast<size_t>(value)];
}

}  // namespace megatron
