#pragma once

#include <string>

namespace megatron {

// A regular expression whose strings all have a format of JSON schema: date, time, date-time, duration,
// email, hostname, ipv4, uuid, uri. A ConfigError names those that are known.
std::string format_pattern(const std::string& format, const std::string& place);

}  // namespace megatron
