#include "megatron/cli/commands.h"

#include "megatron/base/error.h"
#include "megatron/config/help.h"

namespace megatron {

std::string explain_help() {
  return "usage: megatron explain KEY... [--json]\n"
         "\n"
         "tells what a setting does, what it may be, its default, its flags and the rules it must fulfil;\n"
         "KEY is model.hidden_size, hidden_size or --hidden-size; model lists the whole section\n";
}

int run_explain(Invocation& invocation) {
  std::vector<std::string> names = invocation.args;
  const bool json = std::erase(names, "--json") > 0;
  if (names.empty()) throw UsageError("explain: name a setting, such as model.hidden_size or --hidden-size");
  if (json) {
    Json all = Json::array();
    for (const std::string& name : names) all.push_back(explain_json(name));
    fmt::print(invocation.out, "{}\n", all.dump(2));
    return 0;
  }
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : "\n") + explain_setting(name);
  fmt::print(invocation.out, "{}", text);
  return 0;
}

}  // namespace megatron
