#include "megatron/config/config.h"

#include "megatron/config/schema/value.h"

namespace megatron {
namespace {

template <auto Member>
Section section() {
  using T = std::remove_reference_t<decltype(std::declval<Config&>().*Member)>;
  return {&schema<T>(), [](Config& config) -> void* { return &(config.*Member); }};
}

Section moe_section() {
  return {&schema<MoeConfig>(),
          [](Config& config) -> void* { return static_cast<MoeConfig*>(&config.model); }};
}

}  // namespace

std::span<const Section> sections() {
  static const std::vector<Section> all = {
      section<&Config::run>(),
      section<&Config::model>(),
      moe_section(),
      section<&Config::parallel>(),
      section<&Config::precision>(),
      section<&Config::execution>(),
      section<&Config::train>(),
      section<&Config::validation>(),
      section<&Config::optimizer>(),
      section<&Config::scheduler>(),
      section<&Config::ddp>(),
      section<&Config::dist>(),
      section<&Config::dataset>(),
      section<&Config::tokenizer>(),
      section<&Config::checkpoint>(),
      section<&Config::logger>(),
      section<&Config::profiling>(),
      section<&Config::rng>(),
      section<&Config::rerun_state_machine>(),
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
