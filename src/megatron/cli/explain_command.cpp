#include "megatron/cli/explain_command.h"

#include "megatron/base/error.h"
#include "megatron/config/help.h"

namespace megatron {

std::string explain_help() {
  return "usage: megatron explain KEY...\n"
         "\n"
         "tells what a setting does, what it may be, its default, its flags and the rules it must fulfil;\n"
         "KEY is model.hidden_size, hidden_size or --hidden-size; model lists the whole section\n";
}

int run_explain(Invocation& invocation) {
  if (invocation.args.empty())
    throw UsageError("explain: name a setting, such as model.hidden_size or --hidden-size");
  std::string text;
  for (const std::string& name : invocation.args) text += (text.empty() ? "" : "\n") + explain_setting(name);
  fmt::print(invocation.out, "{}", text);
  return 0;
}

}  // namespace megatron
