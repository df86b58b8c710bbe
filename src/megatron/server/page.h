#pragma once

#include <string_view>

namespace megatron {

// The page at "/": page/index.html as it is in the source, which needs nothing from elsewhere.
std::string_view page_text();

}  // namespace megatron
