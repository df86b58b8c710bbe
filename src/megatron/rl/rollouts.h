#pragma once

#include <functional>
#include <span>
#include <vector>

#include "megatron/rl/environments/environment_set.h"
#include "megatron/rl/inference_model.h"
#include "megatron/rl/prompts.h"
#include "megatron/rl/rollout_bank.h"

namespace megatron::rl {

// A prompt that is to be answered some times. Its number decides what is drawn.
struct Question {
  RolloutTask task;
  int64_t number = 0, answers = 1;
};

// How answers are drawn.
struct Drawing {
  double temperature = 1, top_p = 0;
  int64_t top_k = -1;
  uint64_t seed = 0;
};

// Answers questions by a model and has the answers rewarded. What a question gets depends on the weights, the
// drawing and its number, neither on what else is answered nor, but for rounding, on the layout.
class Answerer {
 public:
  Answerer(const ProcessGroup& world, InferenceModel& model, const EnvironmentSet& environments,
           const Prompts& prompts)
      : world_(world), model_(model), environments_(environments), prompts_(prompts) {}

  // All ranks call it alike and get the groups in the order of the questions; `iteration` is theirs.
  // `finished` is told each group as it is complete, by the first rank of those that made it.
  std::vector<BankedGroup> answer(std::span<const Question> questions, const Drawing& drawing,
                                  int64_t iteration,
                                  const std::function<void(const BankedGroup&)>& finished = {}) const;

 private:
  std::vector<BankedGroup> answer_own(std::span<const Question> questions, const Drawing& drawing,
                                      int64_t iteration,
                                      const std::function<void(const BankedGroup&)>& finished) const;

  const ProcessGroup& world_;
  InferenceModel& model_;
  const EnvironmentSet& environments_;
  const Prompts& prompts_;
};

Json to_json(const BankedGroup& group);
BankedGroup group_from_json(const Json& json);

}  // namespace megatron::rl
