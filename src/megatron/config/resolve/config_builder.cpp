#include "megatron/config/resolve/config_builder.h"

#include "megatron/config/schema/value.h"

namespace megatron {

const Catalog::Entry& ConfigBuilder::entry(std::string_view name) const {
  const Catalog::Entry* found = Catalog::all().find(name);
  require(found != nullptr, "there is no setting {}", name);
  return *found;
}

void ConfigBuilder::give(const Catalog::Entry& entry, const Json& value, const Origin& origin) {
  Config defaults;
  origins_[entry.index] = origin;
  const ValidationError error =
      store_value(*entry.setting, entry.section->object(config), value, entry.section->object(defaults));
  if (!error) return;
  problems_.push_back({entry.setting->name(), show_value(value), origin.where, error.reason, error.fix});
  broken_.insert(entry.setting->name());
}

bool ConfigBuilder::given(std::string_view name) const { return origin(name).source > Source::derived; }

const Origin& ConfigBuilder::origin(std::string_view name) const { return origins_[entry(name).index]; }

Json ConfigBuilder::value(std::string_view name) const {
  const Catalog::Entry& found = entry(name);
  return read_value(*found.setting, found.section->object(const_cast<Config&>(config)));  // only read
}

void ConfigBuilder::derive(std::string_view name, const Json& value, std::string why) {
  const Catalog::Entry& found = entry(name);
  Config defaults;
  const ValidationError error = store_value(found.setting->without_range(), found.section->object(config),
                                            value, found.section->object(defaults));
  require(!error, "{} cannot be {}: {}", name, show_value(value), error.reason);
  origins_[found.index] = {Source::derived, std::move(why)};
}

void ConfigBuilder::add_problem(Problem problem) { problems_.push_back(std::move(problem)); }

void ConfigBuilder::note(std::string text) { notes_.push_back(std::move(text)); }

void ConfigBuilder::reject(std::string_view name, std::string reason, std::string fix) {
  const Catalog::Entry& found = entry(name);
  const Origin& origin = origins_[found.index];
  const bool unset = origin.source == Source::builtin && !found.setting->unset.empty();
  problems_.push_back(
      {found.setting->name(), unset ? "" : show_value(value(name)),
       origin.source == Source::derived || origin.where.empty() ? show_origin(origin) : origin.where,
       std::move(reason), std::move(fix)});
  if (unset) problems_.back().origin.clear();
}

}  // namespace megatron
