#include "megatron/tokenizers/chat/chat_template.h"

#include "megatron/tokenizers/chat/unicode.h"

namespace megatron::chat {
namespace {

bool any_generation(const Block& block) {
  for (const auto& statement : block) {
    if (statement->kind == Statement::Kind::generation) return true;
    for (const Block& inner : statement->blocks)
      if (any_generation(inner)) return true;
    if (statement->macro && any_generation(statement->macro->body)) return true;
  }
  return false;
}

}  // namespace

ChatTemplate::ChatTemplate(std::string_view source, const ChatLimits& limits) {
  if (source.size() > limits.template_bytes)
    throw TemplateError(fmt::format("the template has {} bytes, at most {} are allowed", source.size(),
                                    limits.template_bytes));
  if (!is_utf8(source)) throw TemplateError("the template is not valid UTF-8");
  block_ = std::make_shared<const Block>(parse(source));
  has_generation_ = any_generation(*block_);
}

ChatRendering ChatTemplate::render(const Json& names, const ChatOptions& options) const {
  Runtime runtime(options.limits, options.now);
  try {
    std::vector<std::pair<std::string, Value>> values;
    for (const auto& [name, value] : names.as_object()) values.emplace_back(name, runtime.from_json(value));
    Interpreter interpreter(runtime, std::move(values));
    ChatRendering result;
    result.text = interpreter.run(*block_);
    result.generations = interpreter.generations();
    return result;
  } catch (const ValueFault& problem) {
    throw TemplateError(problem.what());
  }
}

}  // namespace megatron::chat
