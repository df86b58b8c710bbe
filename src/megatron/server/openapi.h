#pragma once

#include <string>

#include "megatron/base/json.h"

namespace megatron {

// The description of the endpoints in OpenAPI 3.1.
Json openapi_document(const std::string& version);

}  // namespace megatron
