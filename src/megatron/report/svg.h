#pragma once

#include <string>

#include "megatron/report/page.h"

namespace megatron::report {

// The bars, lanes and tables of a page as one picture that stands for itself; curves and shades are left to
// the page.
std::string render_svg(const Page& page);

}  // namespace megatron::report
