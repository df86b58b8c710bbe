#include "megatron/rl/rl_data.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>

#include "megatron/base/text_file.h"
#include "megatron/comm/string_collectives.h"
#include "megatron/config/resolve/model_settings.h"
#include "megatron/rl/advantages.h"
#include "megatron/rl/log_probs.h"
#include "megatron/rl/reference.h"
#include "megatron/rl/rollouts.h"
#include "megatron/rl/samples.h"

namespace megatron::rl {
namespace {

// Further prompts that replace groups of one reward are asked for this often, then those are learned from.
constexpr int kFilterRounds = 16;
// Settings that may change while a run's bank stays.
constexpr const char* kOfNoAnswer[] = {"rl_rollout_bank_dir",
                                       "rl_rollout_bank_max_bytes",
                                       "rl_durable_rollout_bank",
                                       "rl_prompts_per_eval",
                                       "rl_kv_cache_management_mode",
                                       "rl_inference_tensor_model_parallel_size",
                                       "rl_inference_pipeline_model_parallel_size",
                                       "rl_use_sequence_packing",
                                       "rl_sequence_packing_max_sequences_per_bin",
                                       "langrl_env_config"};
constexpr uint64_t kEvaluationSeed = 0x9e3779b97f4a7c15;

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

class RolloutData final : public LiveData {
 public:
  RolloutData(const TrainingRun& run, RunView& view, std::shared_ptr<const EnvironmentSet> environments,
              const Json& state, std::function<void(const std::string&)> tell)
      : config_(run.config),
        rl_(run.config.rl),
        view_(view),
        parallel_(view.trainer.parallel()),
        tell_(std::move(tell)),
        environments_(std::move(environments)),
        prompts_(config_),
        inference_(view.ctx, config_, view.trainer),
        answerer_(view.world, inference_, *environments_, prompts_),
        layout_{.length = config_.model.seq_length,
                .rows = config_.train.micro_batch_size,
                .max_packed = rl_.rl_use_sequence_packing ? rl_.rl_sequence_packing_max_sequences_per_bin : 0,
                .pad = prompts_.pad()} {
    if (!state.is_null()) restore(state);
    if (rl_.has_reference()) {
      const bool begins = state.is_null();
      if (begins) origin_ = Reference::origin_of(run);
      reference_ = std::make_unique<Reference>(run, view, begins ? nullptr : &origin_);
    }
    if (rl_.rl_durable_rollout_bank && view_.is_first_rank()) open_bank();
    if (inference_.is_copy()) tell_("rollouts: a copy of the model with a layout of its own answers");
  }

  std::vector<Batch> step(const StepRequest& request) override {
    if (used_ >= std::ssize(samples_) * rl_.grpo_iterations) collect(request.iteration);
    std::vector<Sample> global;
    for (int64_t i = 0; i < request.samples; ++i)
      global.push_back(samples_[static_cast<size_t>((used_ + i) % std::ssize(samples_))]);
    used_ += request.samples;
    std::vector<Batch> batches;
    if (layout_.max_packed > 0) {
      for (const auto& [rows, first] : own_rows(global)) {
        batches.push_back(batch_of_rows(global, rows, layout_));
        batches.back().first = first;
      }
      return batches;
    }
    for (const Share& share : request.shares) {
      std::vector<std::vector<int64_t>> rows;
      for (int64_t i = share.first; i < share.first + share.count; ++i) rows.push_back({i});
      batches.push_back(batch_of_rows(global, rows, layout_));
      batches.back().first = share.first;
    }
    return batches;
  }

  std::vector<LossTerm> terms() const override { return terms_; }

  std::vector<LossTerm> evaluate() override {
    const TraceRange range(view_.ctx.tracer, "evaluate rollouts");
    inference_.refresh();
    std::vector<Question> questions;
    for (RolloutTask& task : environments_->evaluation_tasks(rl_.rl_prompts_per_eval))
      questions.push_back({.task = std::move(task), .number = std::ssize(questions)});
    Drawing drawing = this->drawing();
    drawing.seed ^= kEvaluationSeed;
    std::map<std::string, std::pair<double, double>> sums;  // of rewards, and how many
    std::vector<std::string> order;
    for (const BankedGroup& group : answerer_.answer(questions, drawing, view_.state.iteration)) {
      if (!sums.contains(group.environment)) order.push_back(group.environment);
      auto& [sum, count] = sums[group.environment];
      for (const BankedRollout& rollout : group.rollouts) sum += rollout.reward, ++count;
    }
    if (!keeps_cache()) inference_.release();
    std::vector<LossTerm> terms;
    for (const std::string& name : order)
      terms.push_back({name + "_eval_mean_reward", sums[name].first / sums[name].second});
    return terms;
  }

  Json state() const override {
    Json state = Json::object();
    state["next_prompt"] = next_prompt_;
    state["reference"] = origin_;
    state["waiting"] = Json::array();
    for (const BankedGroup& group : waiting_) state["waiting"].push_back(to_json(group));
    // A collection that is used up is made anew.
    const bool open = used_ < std::ssize(samples_) * rl_.grpo_iterations;
    state["used"] = open ? used_ : 0;
    state["samples"] = Json::array();
    state["terms"] = Json::object();
    if (!open) return state;
    for (const Sample& sample : samples_) state["samples"].push_back(sample.to_json());
    for (const LossTerm& term : terms_) state["terms"][term.name] = term.value;
    return state;
  }

  // Of the iterations that it holds, later runs need none.
  void saved(int64_t iteration) override {
    if (bank_) bank_->checkpoint(iteration - 1);
  }

 private:
  void open_bank() {
    // What answers and the order of prompts depend on; how ranks share the work is not among it.
    const Json settings = config_.to_json();
    Json own = Json::object();
    for (const char* section : {"rng", "tokenizer", "optimizer"}) own[section] = settings.at(section);
    own["model"] = model_settings(config_.model);
    own["rl"] = Json::object();
    for (const auto& [key, value] : settings.at("rl").as_object())
      if (std::ranges::find(kOfNoAnswer, key) == std::end(kOfNoAnswer)) own["rl"][key] = value;
    own["pretrained_checkpoint"] = config_.checkpoint.pretrained_checkpoint;
    own["global_batch_size"] = config_.train.global_batch_size;
    own["sampling_seed"] = settings.at("inference").at("inference_sampling_seed");
    // Environments that a program made are in no file.
    if (const std::string& file = rl_.langrl_env_config; std::filesystem::exists(file))
      own["environments"] = read_text_file(file);
    const std::string folder =
        rl_.rl_rollout_bank_dir.empty() ? config_.checkpoint.save + "/rollout_bank" : rl_.rl_rollout_bank_dir;
    bank_ = std::make_unique<RolloutBank>(RolloutBank::Options{
        .folder = folder, .max_bytes = rl_.rl_rollout_bank_max_bytes, .run = own.dump(), .warn = tell_});
    if (bank_->size() > 0) tell_(fmt::format("rollouts: {} has {} groups of answers", folder, bank_->size()));
  }

  void restore(const Json& state) {
    next_prompt_ = state.at("next_prompt").as_int();
    origin_ = state.at("reference").as_string();
    used_ = state.at("used").as_int();
    for (const Json& group : state.at("waiting").as_array()) waiting_.push_back(group_from_json(group));
    for (const Json& sample : state.at("samples").as_array()) samples_.push_back(Sample::from_json(sample));
    for (const auto& [name, value] : state.at("terms").as_object())
      terms_.push_back({name, value.as_double()});
  }

  bool keeps_cache() const { return rl_.rl_kv_cache_management_mode == KvCacheMode::persist; }
  Drawing drawing() const {
    return {
        .temperature = rl_.rl_default_temperature,
        .top_p = rl_.rl_default_top_p,
        .top_k = rl_.rl_default_top_k,
        .seed = static_cast<uint64_t>(config_.inference.inference_sampling_seed.value_or(config_.rng.seed))};
  }

  void collect(int64_t iteration) {
    inference_.refresh();
    {
      const TraceRange range(view_.ctx.tracer, "rollouts");
      ask(iteration);
    }
    if (!keeps_cache()) inference_.release();
    const auto last = waiting_.begin() + rl_.grpo_prompts_per_step;
    const std::vector<BankedGroup> groups(std::make_move_iterator(waiting_.begin()),
                                          std::make_move_iterator(last));
    waiting_.erase(waiting_.begin(), last);
    describe(groups);
    samples_ = samples_of(groups);
    used_ = 0;
    take_log_probs(view_.trainer.model(), &Sample::old_log_probs);
    if (reference_) take_log_probs(reference_->model(), &Sample::reference_log_probs);
    if (rl_.rl_inference_logprobs_is_correction)
      for (Sample& sample : samples_)
        sample.sampling_weights = sampling_weights(sample, rl_.rl_importance_sampling_truncation_coef);
  }

  // Groups that are answered before a collection is learned from: those of later ones lag behind the policy.
  int64_t wanted_groups() const {
    const int64_t prompts = rl_.grpo_prompts_per_step;
    if (const auto most = rl_.rl_max_inflight_requests) return std::max(prompts, *most / rl_.grpo_group_size);
    const double lag = std::max(0.0, rl_.rl_generation_lag.value_or(0));
    return static_cast<int64_t>(std::ceil((lag + 1) * static_cast<double>(prompts)));
  }

  // Has prompts answered until enough groups wait.
  void ask(int64_t iteration) {
    for (int round = 0; std::ssize(waiting_) < wanted_groups(); ++round) {
      const int64_t missing = wanted_groups() - std::ssize(waiting_);
      std::vector<Question> questions;
      for (RolloutTask& task :
           environments_->training_tasks(static_cast<uint64_t>(config_.rng.seed), next_prompt_, missing))
        questions.push_back({.task = std::move(task),
                             .number = next_prompt_ + std::ssize(questions),
                             .answers = rl_.grpo_group_size});
      next_prompt_ += missing;
      const bool filters = rl_.grpo_filter_groups_with_same_reward && round < kFilterRounds;
      int64_t left_out = 0;
      for (BankedGroup& group : answered(questions, iteration)) {
        if (filters && is_same(group))
          ++left_out;
        else
          waiting_.push_back(std::move(group));
      }
      if (round + 1 == kFilterRounds && left_out > 0)
        tell_(fmt::format("rollouts: after {} rounds groups with the same reward are learned from as well",
                          kFilterRounds));
    }
  }

  // Those that the bank has are not asked again.
  std::vector<BankedGroup> answered(std::span<const Question> questions, int64_t iteration) {
    if (!rl_.rl_durable_rollout_bank) return answerer_.answer(questions, drawing(), iteration);
    Json banked = Json::array();
    if (bank_)
      for (const Question& question : questions)
        if (const auto group = bank_->find(iteration, question.number); group && answers(*group, question))
          banked.push_back(to_json(*group));
    std::map<int64_t, BankedGroup> groups;
    const Json known = Json::parse(broadcast_text(view_.world, banked.dump(), 0), "rollouts");
    for (const Json& one : known.as_array()) {
      BankedGroup group = group_from_json(one);
      groups[group.prompt] = std::move(group);
    }
    std::vector<Question> missing;
    for (const Question& question : questions)
      if (!groups.contains(question.number)) missing.push_back(question);
    std::set<int64_t> kept;
    const auto keep = [&](const BankedGroup& group) {
      if (bank_ && !kept.contains(group.prompt) && bank_->append(group)) kept.insert(group.prompt);
    };
    for (BankedGroup& group : answerer_.answer(missing, drawing(), iteration, keep)) {
      keep(group);  // another group of ranks answered it
      groups[group.prompt] = std::move(group);
    }
    std::vector<BankedGroup> all;
    for (const Question& question : questions) all.push_back(std::move(groups.at(question.number)));
    return all;
  }

  static bool answers(const BankedGroup& group, const Question& question) {
    return group.environment == question.task.environment && group.task == question.task.index &&
           std::ssize(group.rollouts) == question.answers;
  }

  static bool is_same(const BankedGroup& group) {
    std::vector<double> rewards;
    for (const BankedRollout& rollout : group.rollouts) rewards.push_back(rollout.reward);
    return same_rewards(rewards);
  }

  void describe(std::span<const BankedGroup> groups) {
    double rewards = 0, squares = 0, tokens = 0, cut = 0, same = 0, count = 0;
    for (const BankedGroup& group : groups) {
      same += is_same(group);
      for (const BankedRollout& rollout : group.rollouts) {
        rewards += rollout.reward;
        squares += rollout.reward * rollout.reward;
        tokens += static_cast<double>(std::ssize(rollout.tokens) - rollout.prompt_tokens);
        cut += !rollout.stopped;
        ++count;
      }
    }
    const double mean = rewards / count;
    terms_ = {{"rl/mean_reward", mean},
              {"rl/std_reward", std::sqrt(std::max(0.0, squares / count - mean * mean))},
              {"rl/mean_answer_tokens", tokens / count},
              {"rl/unfinished_answers", cut / count},
              {"rl/groups_of_one_reward", same / static_cast<double>(std::ssize(groups))}};
  }

  // This replica's rows of samples: micro-batches, equally many for each replica, some of them perhaps empty.
  std::vector<std::pair<std::vector<std::vector<int64_t>>, int64_t>> own_rows(
      std::span<const Sample> samples) const {
    std::vector<std::vector<int64_t>> rows = rows_of_samples(samples, layout_);
    const int64_t replicas = parallel_.replicas(), stages = config_.parallel.pipeline_model_parallel_size;
    const int64_t each = round_up(round_up(std::ssize(rows), replicas) / replicas, layout_.rows * stages);
    rows.resize(static_cast<size_t>(each * replicas));
    std::vector<std::pair<std::vector<std::vector<int64_t>>, int64_t>> own;
    const int64_t begin = each * parallel_.replica();
    for (int64_t first = begin; first < begin + each; first += layout_.rows)
      own.push_back({{rows.begin() + first, rows.begin() + first + layout_.rows}, first});
    return own;
  }

  // Each replica passes some of the samples through the model; all get the log-probabilities of all.
  void take_log_probs(Model& model, std::vector<double> Sample::*which) {
    const auto own = own_rows(samples_);
    std::vector<Batch> batches;
    for (const auto& [rows, first] : own) batches.push_back(batch_of_rows(samples_, rows, layout_));
    const auto values = label_log_probs(view_.ctx, model, parallel_, batches);
    std::vector<int64_t> begins;
    int64_t count = 0;
    for (const Sample& sample : samples_) begins.push_back(count), count += sample.answer_tokens();
    std::vector<double> all(static_cast<size_t>(count));
    for (size_t i = 0; i < own.size(); ++i) {
      int64_t row_begin = 0;
      for (const std::vector<int64_t>& row : own[i].first) {
        int64_t at = row_begin;
        for (const int64_t index : row) {
          const Sample& sample = samples_[static_cast<size_t>(index)];
          const auto from = values[i].begin() + at + sample.rollout.prompt_tokens - 1;
          std::copy(from, from + sample.answer_tokens(), all.begin() + begins[static_cast<size_t>(index)]);
          at += std::ssize(sample.rollout.tokens);
        }
        row_begin += layout_.length;
      }
    }
    const Tensor sum = view_.ctx.from_vector(all, {count});
    parallel_.sum_over_replicas(sum, Axis::dp);
    all = view_.ctx.to_vector<double>(sum);
    view_.world.require_running();
    for (size_t i = 0; i < samples_.size(); ++i)
      (samples_[i].*which)
          .assign(all.begin() + begins[i], all.begin() + begins[i] + samples_[i].answer_tokens());
  }

  const Config& config_;
  const RlConfig& rl_;
  RunView& view_;
  const ParallelContext& parallel_;
  std::function<void(const std::string&)> tell_;
  std::shared_ptr<const EnvironmentSet> environments_;
  Prompts prompts_;
  InferenceModel inference_;
  Answerer answerer_;
  RowLayout layout_;
  std::unique_ptr<Reference> reference_;  // null: there is no KL term
  std::string origin_;                    // of its weights
  std::unique_ptr<RolloutBank> bank_;     // on the first rank; null: nothing is kept
  int64_t next_prompt_ = 0;
  std::vector<BankedGroup> waiting_;  // answered, to be learned from in later collections
  std::vector<Sample> samples_;       // of the collection
  int64_t used_ = 0;                  // samples that iterations have taken of it
  std::vector<LossTerm> terms_;
};

}  // namespace

LiveDataMaker rollout_data(std::shared_ptr<const EnvironmentSet> environments) {
  // Ranks of a process read the files once.
  struct Shared {
    std::mutex mutex;
    std::shared_ptr<const EnvironmentSet> environments;
  };
  const auto shared = std::make_shared<Shared>();
  shared->environments = std::move(environments);
  return [shared](const TrainingRun& run, RunView& view, const Json& state,
                  std::function<void(const std::string&)> tell) -> std::unique_ptr<LiveData> {
    {
      const std::lock_guard lock(shared->mutex);
      if (!shared->environments)
        shared->environments =
            std::make_shared<const EnvironmentSet>(EnvironmentSet::read(run.config.rl.langrl_env_config));
    }
    return std::make_unique<RolloutData>(run, view, shared->environments, state, std::move(tell));
  };
}

}  // namespace megatron::rl
