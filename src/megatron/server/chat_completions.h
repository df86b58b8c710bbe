#pragma once

#include <memory>

#include "megatron/server/answer_job.h"
#include "megatron/server/chat_output.h"
#include "megatron/server/chat_prompt.h"

namespace megatron {

// How the served model writes what is no plain answer.
struct ChatStyle {
  ToolFormat tools = ToolFormat::none;
  bool reasoning = false;
};

// POST /v1/chat/completions: answers conversations, with tools and reasoning.
void answer_chat_completions(const std::string& body, std::shared_ptr<HttpReply> reply,
                             const ServedModel& model, const ChatPrompts& prompts, const ChatStyle& style,
                             ConstraintCache& constraints, AnswerShared& shared);

}  // namespace megatron
