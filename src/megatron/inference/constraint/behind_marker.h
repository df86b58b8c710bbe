#pragma once

#include <memory>
#include <optional>
#include <string>

#include "megatron/inference/constraint.h"
#include "megatron/inference/constraint/compile.h"

namespace megatron {

// Holds a text to `inner` behind its first `marker`, and leaves it free before: this is how an answer is
// constrained and the reasoning in front of it is not. The marker is read from the bytes of tokens or, where
// it is a special token, by `marker_token`. A token that has the marker's end and more in it is not allowed,
// so that `inner` begins with a token.
std::shared_ptr<const Constraint> constrain_behind(const SharedVocabulary& vocabulary, std::string marker,
                                                   std::optional<int64_t> marker_token,
                                                   std::shared_ptr<const Constraint> inner);

}  // namespace megatron
