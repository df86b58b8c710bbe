#include "megatron/inference/constraint/string_formats.h"

#include "megatron/base/refuse.h"

namespace megatron {
namespace {

// Days that every year has; 29 February is left out.
const char* const kDate =
    "[12]\\d{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|02-(?:0[1-"
    "9]|1\\d|2["
    "0-8]))";
const char* const kTime =
    "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d{1,6})?(?:Z|[+-](?:0\\d|1[0-4]):[0-5]\\d)";
const char* const kLabel = "[a-z](?:[a-z0-9-]{0,30}[a-z0-9])?";

}  // namespace

std::string format_pattern(const std::string& format, const std::string& place) {
  const auto whole = [](const std::string& pattern) { return "^(?:" + pattern + ")$"; };
  const std::string host = std::string(kLabel) + "(?:\\." + kLabel + "){1,5}";
  if (format == "date") return whole(kDate);
  if (format == "time") return whole(kTime);
  if (format == "date-time") return whole(std::string(kDate) + "T" + kTime);
  if (format == "duration") return whole("P(?:\\d{1,4}W|\\d{1,4}D(?:T\\d{1,4}H)?|T\\d{1,4}[HMS])");
  if (format == "email") return whole("[A-Za-z0-9_+-]{1,32}(?:\\.[A-Za-z0-9_+-]{1,32}){0,3}@" + host);
  if (format == "hostname") return whole(host);
  if (format == "ipv4") {
    const std::string byte = "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)";
    return whole(byte + "(?:\\." + byte + "){3}");
  }
  if (format == "uuid")
    return whole("[0-9a-f]{8}-[0-9a-f]{4}-[1-5][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}");
  if (format == "uri")
    return whole("https?://" + host +
                 "(?::[1-9]\\d{1,3})?(?:/[A-Za-z0-9._~-]{0,64}){0,8}(?:\\?[A-Za-z0-9=&._~-]{0,128})?");
  refuse(
      "JSON schema: {}/format: '{}' is not supported; use date, time, date-time, duration, email, hostname, "
      "ipv4, "
      "uuid or uri, or a pattern",
      place, format);
}

}  // namespace megatron
