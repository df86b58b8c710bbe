#include "megatron/tokenizers/chat/budget.h"

#include "megatron/tokenizers/chat/template_error.h"

namespace megatron::chat {

void Budget::out_of_steps() const {
  fault("the template takes more than {} steps; raise the limit", limits_.steps);
}

void Budget::out_of_memory() const {
  fault("the template needs more than {} bytes of memory; raise the limit", limits_.memory_bytes);
}

void Budget::too_deep() {
  --depth_;
  fault("the template nests deeper than {} evaluations; raise the limit", limits_.depth);
}

}  // namespace megatron::chat
