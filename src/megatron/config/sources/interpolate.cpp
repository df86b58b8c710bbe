#include "megatron/config/sources/interpolate.h"

#include <fmt/format.h>

#include <algorithm>

#include "megatron/base/nearest.h"
#include "megatron/config/schema/value.h"

namespace megatron {
namespace {

class Interpolator {
 public:
  explicit Interpolator(Merged& merged) : merged_(merged), catalog_(Catalog::all()) {}

  void setting(const Catalog::Entry& entry) {
    std::optional<Json>& value = merged_.values[entry.index];
    if (!value) return;
    std::vector<const Setting*> chain = {entry.setting};
    Json result = *value;
    if (interpolate(result, chain, merged_.origins[entry.index])) {
      value = std::move(result);
    } else {
      value.reset();  // reported; the default stands in, so that other checks can go on
    }
  }

 private:
  bool interpolate(Json& value, std::vector<const Setting*>& chain, const Origin& origin) {
    if (value.is_array()) {
      return std::all_of(value.as_array().begin(), value.as_array().end(),
                         [&](Json& item) { return interpolate(item, chain, origin); });
    }
    if (value.is_object()) {
      return std::all_of(value.as_object().begin(), value.as_object().end(),
                         [&](auto& member) { return interpolate(member.second, chain, origin); });
    }
    if (!value.is_string() || value.as_string().find("${") == std::string::npos) return true;
    const std::string text = value.as_string();
    std::string result;
    for (size_t at = 0; at < text.size();) {
      if (text.compare(at, 3, "\\${") == 0) {
        result += "${";
        at += 3;
        continue;
      }
      if (text.compare(at, 2, "${") != 0) {
        result += text[at++];
        continue;
      }
      const size_t close = text.find('}', at);
      if (close == std::string::npos) {
        problem(chain.front()->name(), text, origin, "${ is not closed", "write ${section.key}");
        return false;
      }
      std::optional<Json> part = referenced(text.substr(at + 2, close - at - 2), chain, origin);
      if (!part) return false;
      if (at == 0 && close + 1 == text.size()) {
        value = std::move(*part);  // the whole text is one reference: keep its type
        return true;
      }
      result += show_value(*part);
      at = close + 1;
    }
    value = std::move(result);
    return true;
  }

  std::optional<Json> referenced(const std::string& name, std::vector<const Setting*>& chain,
                                 const Origin& origin) {
    const std::string& user = chain.front()->name();
    const Catalog::Entry* entry = catalog_.find(name);
    if (!entry) {
      problem(user, "${" + name + "}", origin, "it refers to a setting that does not exist",
              did_you_mean(nearest(name, catalog_.names())));
      return {};
    }
    if (std::find(chain.begin(), chain.end(), entry->setting) != chain.end()) {
      problem(user, "${" + name + "}", origin, "it refers to itself in the end", "give one of them a value");
      return {};
    }
    const std::optional<Json>& value = merged_.values[entry->index];
    if (!value && !entry->setting->unset.empty()) {
      problem(user, "${" + name + "}", origin, "it refers to a setting that is not given",
              fmt::format("give {} a value", name));
      return {};
    }
    Json result = value ? *value : default_value(*entry);
    chain.push_back(entry->setting);
    const bool done = interpolate(result, chain, origin);
    chain.pop_back();
    return done ? std::optional(result) : std::nullopt;
  }

  void problem(std::string name, std::string value, const Origin& origin, std::string reason,
               std::string fix) {
    merged_.problems.push_back(
        {std::move(name), std::move(value), origin.where, std::move(reason), std::move(fix)});
  }

  Merged& merged_;
  const Catalog& catalog_;
};

}  // namespace

void interpolate(Merged& merged) {
  Interpolator interpolator(merged);
  for (const Catalog::Entry& entry : Catalog::all().entries()) interpolator.setting(entry);
}

}  // namespace megatron
