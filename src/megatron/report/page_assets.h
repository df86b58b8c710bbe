#pragma once

#include <string_view>

namespace megatron::report {

extern const std::string_view page_css, page_js;  // page.css and page.js, compiled in

}  // namespace megatron::report
