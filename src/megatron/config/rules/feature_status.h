#pragma once

#include <span>
#include <string_view>

#include "megatron/base/json.h"
#include "megatron/config/schema/setting.h"

namespace megatron {

// What this build does with a setting.
enum class FeatureStatus {
  supported,
  planned,       // the feature is not built yet: refused where it would change anything
  forward_only,  // acts where a model is run, refused where one is trained
  no_effect      // accepted and listed, because it changes nothing here
};

// One feature and the settings that belong to it. The table is the only place that says what this build can
// do: a feature that gets built edits its row.
struct Feature {
  FeatureStatus status;
  std::string_view name;  // "pipeline parallelism"
  std::string_view
      settings;  // names, separated by blanks; section.prefix_* covers several, name=a,b only those values
};

std::span<const Feature> features();

// The feature that a setting belongs to when it has `value`: the first row of the table that names it.
const Feature& feature_of(const Setting& setting, const Json& value);

}  // namespace megatron
