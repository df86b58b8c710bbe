#include "megatron/training/run/checkpoint_loader.h"

#include <algorithm>
#include <chrono>
#include <map>

#include "megatron/base/refuse.h"
#include "megatron/bridge/auto_bridge.h"
#include "megatron/checkpoint/agree.h"
#include "megatron/comm/string_collectives.h"
#include "megatron/training/run/schedule_state.h"
#include "megatron/training/setup/upcycle.h"
#include "megatron/training/step/rank_trainer.h"

namespace megatron {
namespace {

std::string joined_names(const std::vector<std::string>& names) {
  constexpr size_t kShown = 10;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i) text += (i > 0 ? ", " : "") + names[i];
  if (names.size() > kShown) text += fmt::format(" and {} more", names.size() - kShown);
  return text;
}

// What every rank lists (`common`), or any rank does, in order.
std::vector<std::string> gathered_names(const ProcessGroup& world, const std::vector<std::string>& own,
                                        bool common) {
  std::map<std::string, int> ranks;
  const Json::Array list(own.begin(), own.end());
  for (const std::string& text : all_gather_strings(world, Json(list).dump())) {
    const Json names = Json::parse(text, "names of tensors");
    for (const Json& name : names.as_array()) ++ranks[name.as_string()];
  }
  std::vector<std::string> names;
  for (const auto& [name, count] : ranks)
    if (!common || count == world.size()) names.push_back(name);
  return names;
}

}  // namespace

CheckpointLoader::Taken CheckpointLoader::take(const LoadPlace& place, bool weights_only) {
  std::vector<std::string> notes;
  TensorSource source = open_place(place, config_.checkpoint.verify_integrity, world_.size() == 1, notes);
  const bool upcycles = config_.model.moe_use_upcycling && is_dense(source);
  if (upcycles) source = upcycled(std::move(source), config_.model, static_cast<uint64_t>(config_.rng.seed));
  if (config_.model.moe_use_upcycling && !upcycles && !restarted_ && !has_own_experts(config_, place))
    throw ConfigError(fmt::format(
        "--moe-use-upcycling: {} has experts already; leave out --moe-use-upcycling to go on with them",
        source.path));
  Taken taken = take(source, weights_only, !upcycles);
  taken.notes = std::move(notes);
  return taken;
}

CheckpointLoader::Taken CheckpointLoader::take(const TensorSource& source, bool weights_only,
                                               bool has_state) {
  const CheckpointConfig& checkpoint = config_.checkpoint;
  Taken taken;
  // Upcycling passes over the optimizer of the dense model, not over its own.
  const bool optimizer = restarted_ || checkpoint.load_optim || config_.model.moe_use_upcycling;
  const LoadOptions options{.optimizer = !weights_only && has_state && optimizer,
                            .masters = checkpoint.load_main_params_from_ckpt,
                            .strictness = checkpoint.dist_ckpt_strictness,
                            .allow_missing_vision_projection = checkpoint.allow_missing_vision_projection};
  if (options.optimizer) check_schedule(source);
  try {
    taken.report = load_run(ctx_, source, trainer_, options);
  } catch (const ConfigError&) {  // a long list of tensors, mostly with one cause
    if (const std::string cause = other_sizes(source.state.config, config_); !cause.empty())
      throw ConfigError(fmt::format(
          "the checkpoint {} is of another model: {}; give the sizes that it has, or --use-checkpoint-args",
          source.path, cause));
    throw;
  }
  const TrainingState& state = source.state;
  taken.base = state.base;
  trainer_.optimizer().set_steps(options.optimizer ? state.optimizer_steps : 0);
  if (options.optimizer && state.loss_scale) trainer_.loss_scale().restore(*state.loss_scale);
  if (!weights_only)
    taken.progress = {.iteration = state.iteration,
                      .consumed_samples = state.consumed_samples,
                      .skipped_samples = state.skipped_samples,
                      .without_update = state.without_update,
                      .validated_samples = state.consumed_valid_samples,
                      .rerun = state.rerun,
                      .user = state.user};
  return taken;
}

void CheckpointLoader::tell_report(const Taken& taken) {
  for (const std::string& note : taken.notes) tell(note);
  const Strictness strictness = config_.checkpoint.dist_ckpt_strictness;
  const bool raises = strictness == Strictness::raise_unexpected || strictness == Strictness::raise_all;
  if (!raises && strictness != Strictness::log_unexpected && strictness != Strictness::log_all &&
      !config_.checkpoint.allow_missing_vision_projection)
    return;
  const std::vector<std::string> unexpected = gathered_names(world_, taken.report.unexpected, true),
                                 missing = gathered_names(world_, taken.report.missing, false);
  if (raises && !unexpected.empty())
    throw ConfigError(
        fmt::format("the checkpoint has {} tensors that the model has not: {}; --dist-ckpt-strictness "
                    "log_unexpected goes on",
                    unexpected.size(), joined_names(unexpected)));
  if (!unexpected.empty())
    tell(fmt::format("{} tensors of the checkpoint are not the model's and were not read: {}",
                     unexpected.size(), joined_names(unexpected)));
  if (!missing.empty())
    tell(fmt::format("{} tensors are not in the checkpoint and keep their initial values: {}", missing.size(),
                     joined_names(missing)));
}

void CheckpointLoader::check_schedule(const TensorSource& source) {
  const SchedulerConfig& settings = config_.scheduler;
  if (!source.state.schedule.is_object()) return;
  const RateSchedule stored = schedule_from_state(source.state.schedule, schedule_, source.path);
  const std::string difference = schedule_difference(schedule_, stored);
  if (difference.empty()) return;
  if (settings.override_opt_param_scheduler)
    return tell(fmt::format("the schedule is another than the checkpoint's: {}", difference));
  if (!settings.use_checkpoint_opt_param_scheduler)
    throw ConfigError(fmt::format(
        "{}: its run had another schedule: {}; give --override-opt_param-scheduler to follow this one, or "
        "--use-checkpoint-opt_param-scheduler to follow the checkpoint's",
        source.path, difference));
  tell(fmt::format("the checkpoint's schedule is followed instead of this one: {}", difference));
  schedule_ = stored;
}

// Tells every other second how far it has come.
void CheckpointLoader::read_hf_weights() {
  constexpr std::chrono::seconds kSilence(2);
  const std::vector<Parameter*> parameters = trainer_.parameters();
  auto told = std::chrono::steady_clock::now();
  for (size_t i = 0; i < parameters.size(); ++i) {
    hf_->load(ctx_, {&parameters[i], 1});
    const auto now = std::chrono::steady_clock::now();
    if (now - told < kSilence) continue;
    told = now;
    tell(fmt::format("weights from {}: {} of {} tensors are read", hf_->directory(), i + 1,
                     parameters.size()));
  }
}

// A tower is put before a language model that has none; what the tower begins from stays.
void CheckpointLoader::load_language_model() {
  const std::string& root = config_.checkpoint.language_model_checkpoint;
  if (root.empty() || !config_.model.has_tower()) return;
  const std::string found = agree(world_, "", [&]() -> std::string {
    return recognise_checkpoint(root).kind == CheckpointKind::none ? "none" : "there";
  })[0];
  if (found == "none")
    return tell(fmt::format("no checkpoint in {}: the language model begins untrained", root));
  const LoadPlace place = named_place("--language-model-checkpoint", root);
  agree(world_, "", [&] {
    std::vector<std::string> notes;
    const TensorSource source =
        open_place(place, config_.checkpoint.verify_integrity, world_.size() == 1, notes);
    const LoadReport report =
        load_run(ctx_, source, trainer_, {.optimizer = false, .strictness = Strictness::log_all});
    for (const std::string& name : report.missing)
      require_input(name.starts_with("vision_") || name.starts_with("multi_modal_"),
                    "--language-model-checkpoint {}: it has no {}", root, name);
    return "";
  });
  tell(fmt::format("language model from {}", place.path));
}

}  // namespace megatron
