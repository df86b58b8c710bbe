#include "megatron/autotune/cost/calibration.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "megatron/autotune/calibrations.h"
#include "megatron/base/error.h"

namespace megatron::autotune {
namespace {

struct NamedConstant {
  std::string_view name;
  double CostConstants::*member;
};

constexpr NamedConstant kConstants[] = {
#define CONSTANT(name) \
  { #name, &CostConstants::name }
    CONSTANT(gemm16),
    CONSTANT(gemm8),
    CONSTANT(gemm4),
    CONSTANT(attention),
    CONSTANT(memory),
    CONSTANT(nvlink),
    CONSTANT(nic),
    CONSTANT(rails),
    CONSTANT(exposed),
    CONSTANT(host_moe_ms),
    CONSTANT(host_forward_ms),
    CONSTANT(host_backward_ms),
    CONSTANT(host_wait_ms),
    CONSTANT(host_width),
    CONSTANT(host_softmax_ms),
    CONSTANT(host_microbatch_ms),
    CONSTANT(kernel_us),
    CONSTANT(shape),
    CONSTANT(smooth),
    CONSTANT(latency_us),
    CONSTANT(step_ms),
    CONSTANT(step_single_ms),
    CONSTANT(optimizer),
    CONSTANT(grad_reduce),
#undef CONSTANT
};

bool earlier(const LayerFactor& a, const LayerFactor& b) { return a.shape < b.shape; }

}  // namespace

double Calibration::layer_factor(const LayerShape& shape) const {
  const auto place = std::lower_bound(layers.begin(), layers.end(), LayerFactor{shape, 1}, earlier);
  return place != layers.end() && place->shape == shape ? place->factor : 1;
}

Json to_json(const Calibration& calibration) {
  Json document = Json::object();
  Json& constants = document["constants"] = Json::object();
  for (const NamedConstant& constant : kConstants)
    constants[constant.name] = std::round(calibration.constants.*constant.member * 1e6) / 1e6;
  Json& layers = document["layers"] = Json::array();
  for (const LayerFactor& layer : calibration.layers) {
    Json row = Json::object();
    Json& shape = row["shape"] = Json::array();
    for (const int64_t part : layer.shape) shape.push_back(part);
    row["factor"] = std::round(layer.factor * 1e6) / 1e6;
    layers.push_back(std::move(row));
  }
  return document;
}

Calibration parse_calibration(const Json& document, std::string_view origin) {
  Calibration result;
  const auto positive = [&](const Json& value, std::string_view key) {
    if (!value.is_number() || !(value.as_double() >= 0) || value.as_double() > 1e6)
      throw ConfigError(
          fmt::format("{}: {}: needs a number from 0 to 1e6 (got {})", origin, key, value.dump()));
    return value.as_double();
  };
  if (!document.is_object()) throw ConfigError(fmt::format("{}: needs an object", origin));
  if (const Json* constants = document.find("constants"); constants != nullptr && constants->is_object())
    for (const auto& [key, value] : constants->as_object()) {
      const auto* known =
          std::find_if(std::begin(kConstants), std::end(kConstants),
                       [&, name = std::string_view(key)](const NamedConstant& c) { return c.name == name; });
      if (known == std::end(kConstants))
        throw ConfigError(fmt::format("{}: {}: is no constant", origin, key));
      result.constants.*known->member = positive(value, key);
    }
  if (const Json* layers = document.find("layers"); layers != nullptr && layers->is_array())
    for (const Json& row : layers->as_array()) {
      const Json* shape = row.is_object() ? row.find("shape") : nullptr;
      const Json* factor = row.is_object() ? row.find("factor") : nullptr;
      if (shape == nullptr || factor == nullptr || !shape->is_array() || shape->size() != LayerShape{}.size())
        throw ConfigError(fmt::format("{}: layers: needs a shape of {} numbers and a factor (got {})", origin,
                                      LayerShape{}.size(), row.dump()));
      LayerFactor layer;
      for (size_t i = 0; i < layer.shape.size(); ++i) {
        if (!(*shape)[i].is_int())
          throw ConfigError(fmt::format("{}: layers: shape {}", origin, shape->dump()));
        layer.shape[i] = (*shape)[i].as_int();
      }
      layer.factor = positive(*factor, "layers: factor");
      result.layers.push_back(layer);
    }
  std::sort(result.layers.begin(), result.layers.end(), earlier);
  return result;
}

const Calibration& shipped_calibration(std::string_view name) {
  static const Calibration h100 = parse_calibration(Json::parse(h100_calibration, "h100.json"), "h100.json");
  static const Calibration a100 = parse_calibration(Json::parse(a100_calibration, "a100.json"), "a100.json");
  if (name == "h100") return h100;
  if (name == "a100") return a100;
  throw ConfigError(fmt::format("calibration '{}': not known; give h100 or a100", name));
}

}  // namespace megatron::autotune
