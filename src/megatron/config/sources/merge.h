#pragma once

#include <optional>
#include <string>
#include <vector>

#include "megatron/config/origin.h"
#include "megatron/config/problems.h"
#include "megatron/config/schema/catalog.h"
#include "megatron/config/sources/sources.h"

namespace megatron {

// What the sources say together: for each setting the value of the strongest source that has one.
struct Merged {
  std::vector<std::optional<Json>> values;  // by the settings' places in the catalog
  std::vector<Origin> origins;
  std::vector<Problem> problems;
  std::vector<Problem> unavailable;  // what is given of compat.tsv and not built yet
  std::vector<std::string> notes;    // what was accepted without effect
};

Merged merge(const Sources& sources);

}  // namespace megatron
