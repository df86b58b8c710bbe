#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "megatron/inference/request.h"
#include "megatron/server/answer_text.h"
#include "megatron/server/constraint_cache.h"
#include "megatron/server/fields.h"
#include "megatron/server/served_model.h"

namespace megatron {

// What a body asks for, whichever endpoint it was sent to.
struct GenerationSettings {
  Request request;  // but for its prompt; max_tokens -1: not given
  TextOptions text;
  std::set<int64_t> stop_tokens;  // that end an answer for this client alone
  int64_t answers = 1;            // to each prompt
  bool seeded = false;            // by the client; else each answer gets a seed of its own
  bool stream = false;
  bool include_usage = false;
};

// Reads the fields that all endpoints share: sampling, lengths, stops, streams, constraints.
GenerationSettings read_generation(Fields& fields, const ServedModel& model, ConstraintCache& constraints);

// An ApiError of status 404 where a body asks for another model.
void require_model(Fields& fields, const ServedModel& model);

// Runs compile(), whose refusals of constraints become ApiErrors about `field`.
std::shared_ptr<const Constraint> compile_for(const std::string& field,
                                              const ConstraintCache::Compile& compile);

}  // namespace megatron
