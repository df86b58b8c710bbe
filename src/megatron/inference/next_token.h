#pragma once

#include <optional>
#include <span>

#include "megatron/inference/scheduler.h"

namespace megatron {

// Chooses by the request's sampling, among the tokens that its constraint and its least length allow; none
// where the text is complete and the model has no token that ends one.
std::optional<TokenChoice> choose_token(const ActiveRequest& active, std::span<float> logits);

// Whether nothing but the logits and the request's sampling decides.
bool draws_freely(const ActiveRequest& active);

// Tokens of the stop sequence that the answer ends in; 0: it ends in none.
int64_t stop_length(const ActiveRequest& active);

}  // namespace megatron
