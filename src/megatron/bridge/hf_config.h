#pragma once

#include <initializer_list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/base/json.h"

namespace megatron {

// The rotary settings of a config.json, of either layout: transformers 5 writes `rope_parameters`, one for
// the model or one per type of layer; older files have `rope_theta` and `rope_scaling`.
struct HfRope {
  std::string type = "default";
  std::optional<double> theta, partial_rotary_factor;
  Json scaling = Json::object();  // what else the scaling has: factor, beta_fast, …
};

// A Hugging Face config.json. A key that is null counts as absent.
class HfConfig {
 public:
  explicit HfConfig(Json json);
  static HfConfig read(const std::string& directory);  // its config.json

  const Json& json() const { return json_; }
  std::string architecture() const;  // a ConfigError where the file names none
  std::string dtype() const;         // "float32" where it does not say

  // The first key of the list that is there.
  const Json* find(std::initializer_list<std::string_view> keys) const;
  bool has(std::string_view key) const { return find({key}) != nullptr; }
  // Each a ConfigError with the key where the value is of another type, or where no key is there and no
  // fallback. Whole numbers are at least 0; without a fallback they are sizes, and at least 1.
  int64_t integer(std::initializer_list<std::string_view> keys, std::optional<int64_t> fallback = {}) const;
  int64_t size(std::initializer_list<std::string_view> keys, int64_t fallback) const;
  int64_t layers(std::initializer_list<std::string_view> keys, std::optional<int64_t> fallback = {}) const;
  double real(std::initializer_list<std::string_view> keys, std::optional<double> fallback = {}) const;
  std::string text(std::initializer_list<std::string_view> keys, std::string_view fallback) const;
  bool flag(std::string_view key, bool fallback = false) const;
  // A ConfigError where the key has another value: it changes `what`, which is built for this one alone.
  void expect(std::string_view key, const Json& value, std::string_view what) const;
  const std::vector<Json>& list(std::string_view key, int64_t size = -1) const;  // of `size` entries
  // Keys that are known, and that another one's value leaves without effect.
  void pass_over(std::initializer_list<std::string_view> keys) const;

  HfRope rope(std::string_view layer_type = "full_attention") const;

  using Keys = std::set<std::string, std::less<>>;
  // The same file, or another text of it, that notes in `asked` which keys it is asked for. Who reads it
  // alone does so: `asked` is shared with copies.
  HfConfig noting(std::shared_ptr<Keys> asked) const;
  HfConfig with(Json json) const;
  // Keys that are in the file, not among those asked for, and not known to leave the arithmetic as it is.
  std::vector<std::string> unknown_keys(const Keys& asked) const;

 private:
  struct Entry {
    std::string_view key;
    const Json* value;
  };
  std::optional<Entry> entry(std::initializer_list<std::string_view> keys) const;
  int64_t size_of(const Entry& entry) const;

  Json json_;
  std::shared_ptr<Keys> asked_;  // null: nobody wants to know
};

}  // namespace megatron
