#include "megatron/config/resolve/config_builder.h"

#include "megatron/config/schema/value.h"

namespace megatron {

namespace {

const Catalog::Entry& entry_of(std::string_view name) {
  const Catalog::Entry* found = Catalog::all().find(name);
  require(found != nullptr, "there is no setting {}", name);
  return *found;
}

Json value_of(const Config& config, const Catalog::Entry& entry) {
  return read_value(*entry.setting, entry.section->object(const_cast<Config&>(config)));  // only read
}

}  // namespace

Problem problem_of(const Config& config, std::span<const Origin> origins, std::string_view name,
                   std::string reason, std::string fix) {
  const Catalog::Entry& entry = entry_of(name);
  const Origin& origin = origins[entry.index];
  if (origin.source == Source::builtin && !entry.setting->unset.empty())
    return {entry.setting->name(), "", "", std::move(reason), std::move(fix)};
  return {entry.setting->name(), show_value(value_of(config, entry)),
          origin.source == Source::derived || origin.where.empty() ? show_origin(origin) : origin.where,
          std::move(reason), std::move(fix)};
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

const Origin& ConfigBuilder::origin(std::string_view name) const { return origins_[entry_of(name).index]; }

Json ConfigBuilder::value(std::string_view name) const { return value_of(config, entry_of(name)); }

void ConfigBuilder::derive(std::string_view name, const Json& value, std::string why) {
  const Catalog::Entry& found = entry_of(name);
  Config defaults;
  const ValidationError error = store_value(found.setting->without_range(), found.section->object(config),
                                            value, found.section->object(defaults));
  require(!error, "{} cannot be {}: {}", name, show_value(value), error.reason);
  origins_[found.index] = {Source::derived, std::move(why)};
}

void ConfigBuilder::add_problem(Problem problem) { problems_.push_back(std::move(problem)); }

void ConfigBuilder::note(std::string text) { notes_.push_back(std::move(text)); }

void ConfigBuilder::reject(std::string_view name, std::string reason, std::string fix) {
  problems_.push_back(problem_of(config, origins_, name, std::move(reason), std::move(fix)));
}

}  // namespace megatron
