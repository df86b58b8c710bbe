#pragma once

#include <memory>

#include "megatron/server/answer_job.h"

namespace megatron {

// POST /v1/completions: goes on from prompts, given as text or tokens.
void answer_completions(const std::string& body, std::shared_ptr<HttpReply> reply, const ServedModel& model,
                        ConstraintCache& constraints, AnswerShared& shared);

}  // namespace megatron
