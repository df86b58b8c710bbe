#include "megatron/rl/rollouts.h"

#include <map>
#include <mutex>

#include "megatron/comm/string_collectives.h"
#include "megatron/rl/rewarder.h"
#include "megatron/tensor/philox.h"

namespace megatron::rl {
namespace {

Sampling sampling_of(const Drawing& drawing, int64_t number, int64_t answer) {
  Sampling sampling;
  sampling.temperature = drawing.temperature;
  sampling.top_p = drawing.top_p > 0 ? drawing.top_p : 1;
  sampling.top_k = std::max<int64_t>(0, drawing.top_k);
  const auto words = Philox::at({drawing.seed, static_cast<uint64_t>(number)}, static_cast<uint64_t>(answer));
  sampling.seed = uint64_t{words.word[0]} << 32 | words.word[1];
  return sampling;
}

// A group of which some answers have no reward yet.
struct Open {
  BankedGroup group;
  int64_t left = 0;  // of them
};

}  // namespace

Json to_json(const BankedGroup& group) {
  Json json = Json::object();
  json["iteration"] = group.iteration;
  json["prompt"] = group.prompt;
  json["environment"] = group.environment;
  json["task"] = group.task;
  json["rollouts"] = Json::array();
  for (const BankedRollout& rollout : group.rollouts) {
    Json one = Json::object();
    one["tokens"] = Json::array();
    for (const int64_t token : rollout.tokens) one["tokens"].push_back(token);
    one["prompt_tokens"] = rollout.prompt_tokens;
    one["log_probs"] = Json::array();
    for (const float value : rollout.log_probs) one["log_probs"].push_back(static_cast<double>(value));
    one["reward"] = rollout.reward;
    one["stopped"] = rollout.stopped;
    json["rollouts"].push_back(std::move(one));
  }
  return json;
}

BankedGroup group_from_json(const Json& json) {
  BankedGroup group{.iteration = json.at("iteration").as_int(),
                    .prompt = json.at("prompt").as_int(),
                    .environment = json.at("environment").as_string(),
                    .task = json.at("task").as_int()};
  for (const Json& one : json.at("rollouts").as_array()) {
    BankedRollout& rollout = group.rollouts.emplace_back();
    for (const Json& token : one.at("tokens").as_array()) rollout.tokens.push_back(token.as_int());
    rollout.prompt_tokens = one.at("prompt_tokens").as_int();
    for (const Json& value : one.at("log_probs").as_array())
      rollout.log_probs.push_back(static_cast<float>(value.as_double()));
    rollout.reward = one.at("reward").as_double();
    rollout.stopped = one.at("stopped").as_bool();
  }
  return group;
}

// On the first rank of those that answer together; the others step alike.
std::vector<BankedGroup> Answerer::answer_own(std::span<const Question> questions, const Drawing& drawing,
                                              int64_t iteration,
                                              const std::function<void(const BankedGroup&)>& finished) const {
  Engine& engine = model_.engine();
  const int64_t longest = engine.max_length() + 1;  // the last token is not read
  std::vector<Open> open(questions.size());
  std::mutex mutex;  // of what is left, and of `finished`
  Rewarder rewarder;
  const auto reward = [&](size_t at, BankedRollout& rollout) {
    const std::span<const int64_t> text(rollout.tokens);
    rollout.reward = environments_.reward(
        questions[at].task,
        {.text = prompts_.decode(text.subspan(static_cast<size_t>(rollout.prompt_tokens))),
         .stopped = rollout.stopped});
    const std::lock_guard lock(mutex);
    if (--open[at].left == 0 && finished) finished(open[at].group);
  };
  for (size_t at = 0; at < questions.size(); ++at) {
    const Question& question = questions[at];
    const std::vector<int64_t> prompt = prompts_.encode(question.task);
    const auto refused = [&](const std::string& why) {
      throw ConfigError(fmt::format("task {} of the environment {}: {}", question.task.index,
                                    question.task.environment, why));
    };
    if (prompt.empty()) refused("its prompt has no token; leave it out, or use a tokenizer with a BOS token");
    if (std::ssize(prompt) >= longest)
      refused(
          fmt::format("its prompt has {} tokens, and prompt and answer {} at most; use a larger "
                      "--seq-length (and --inference-max-seq-length)",
                      prompt.size(), longest));
    Open& own = open[at];
    own.left = question.answers;
    own.group = {.iteration = iteration,
                 .prompt = question.number,
                 .environment = question.task.environment,
                 .task = question.task.index};
    own.group.rollouts.resize(static_cast<size_t>(question.answers));
    for (int64_t answer = 0; answer < question.answers; ++answer) {
      BankedRollout& rollout = own.group.rollouts[static_cast<size_t>(answer)];
      rollout.tokens = prompt;
      rollout.prompt_tokens = std::ssize(prompt);
      Request request{.prompt = prompt,
                      .sampling = sampling_of(drawing, question.number, answer),
                      .max_tokens = longest - std::ssize(prompt),
                      .end_tokens = prompts_.end_tokens(),
                      .top_logprobs = 0};
      engine.submit(std::move(request), [&, at](const RequestUpdate& update) {
        for (const TokenChoice& token : update.tokens) {
          rollout.tokens.push_back(token.id);
          rollout.log_probs.push_back(token.logprob);
        }
        if (!update.finish) return;
        rollout.stopped = *update.finish == FinishReason::end_token;
        require(*update.finish != FinishReason::failed && *update.finish != FinishReason::cancelled,
                "task {} of the environment {} is not answered: the model's output is not finite",
                questions[at].task.index, questions[at].task.environment);
        rewarder.add([&, at] { reward(at, rollout); });
      });
    }
  }
  while (engine.step()) {
  }
  rewarder.finish();
  std::vector<BankedGroup> groups;
  for (Open& own : open) groups.push_back(std::move(own.group));
  return groups;
}

std::vector<BankedGroup> Answerer::answer(std::span<const Question> questions, const Drawing& drawing,
                                          int64_t iteration,
                                          const std::function<void(const BankedGroup&)>& finished) const {
  std::string text;
  if (model_.is_first()) {
    std::vector<Question> mine;
    for (size_t i = static_cast<size_t>(model_.group()); i < questions.size();
         i += static_cast<size_t>(model_.groups()))
      mine.push_back(questions[i]);
    Json list = Json::array();
    for (const BankedGroup& group : answer_own(mine, drawing, iteration, finished))
      list.push_back(to_json(group));
    text = list.dump();
  } else {
    while (model_.engine().step()) {
    }
  }
  std::map<int64_t, size_t> places;  // of questions, by their numbers
  for (const Question& question : questions) places.emplace(question.number, places.size());
  std::vector<BankedGroup> groups(questions.size());
  for (const std::string& part : all_gather_strings(world_, text)) {
    if (part.empty()) continue;
    const Json list = Json::parse(part, "rollouts");
    for (const Json& one : list.as_array()) {
      BankedGroup group = group_from_json(one);
      groups[places.at(group.prompt)] = std::move(group);
    }
  }
  return groups;
}

}  // namespace megatron::rl
