#pragma once

#include <memory>

#include "megatron/inference/constraint.h"
#include "megatron/inference/constraint/grammar.h"
#include "megatron/inference/constraint/token_trie.h"

namespace megatron {

// A constraint that allows the texts of a finished grammar. Masks are made when they are first asked for and
// kept, within bounds, for all sequences.
std::shared_ptr<const Constraint> make_grammar_constraint(
    Grammar grammar, std::shared_ptr<const ConstraintVocabulary> vocabulary);

}  // namespace megatron
