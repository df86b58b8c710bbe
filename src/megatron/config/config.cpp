#include "megatron/config/config.h"

#include "megatron/config/schema/value.h"

namespace megatron {

std::span<const Section> sections() {
#define SECTION(type, object, section, title) \
  {&schema<type>(), [](Config& config) -> void* { return static_cast<type*>(&config.object); }},
#define SETTING(...)
#define END_SECTION
  static const std::vector<Section> all = {
#include "megatron/config/settings/sections.def"
  };
  return all;
}

Json Config::to_json() const {
  Json result = Json::object();
  Config& self =
      const_cast<Config&>(*this);  // rows give one address for reading and writing; here it is read
  for (const Section& section : sections()) {
    Json& values = result[section.schema->section()];
    for (const Setting& setting : section.schema->rows())
      values[setting.key] = read_value(setting, section.object(self));
  }
  return result;
}

}  // namespace megatron
