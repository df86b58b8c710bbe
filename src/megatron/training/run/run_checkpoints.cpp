#include "megatron/training/run/run_checkpoints.h"

#include <filesystem>

#include <algorithm>
#include <map>

#include "megatron/bridge/auto_bridge.h"
#include "megatron/bridge/source_files.h"
#include "megatron/checkpoint/agree.h"
#include "megatron/checkpoint/directory.h"
#include "megatron/checkpoint/load.h"
#include "megatron/comm/string_collectives.h"
#include "megatron/training/run/load_places.h"
#include "megatron/training/run/schedule_state.h"
#include "megatron/training/setup/checkpoint_tensors.h"
#include "megatron/training/step/rank_trainer.h"

namespace megatron {
namespace {

std::string to_text(const std::vector<LoadPlace>& places) {
  Json::Array list;
  for (const LoadPlace& place : places)
    list.push_back(Json::Array{static_cast<int>(place.kind), place.path, place.iteration});
  return Json(std::move(list)).dump();
}

std::vector<LoadPlace> places_from_text(const std::string& text) {
  std::vector<LoadPlace> places;
  const Json list = Json::parse(text, "places of checkpoints");
  for (const Json& place : list.as_array())
    places.push_back(
        {static_cast<CheckpointKind>(place[0].as_int()), place[1].as_string(), place[2].as_int()});
  return places;
}

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

RunCheckpoints::RunCheckpoints(RankContext& ctx, const ProcessGroup& world, const Config& config,
                               RankTrainer& trainer, RateSchedule& schedule,
                               std::shared_ptr<const AutoBridge> hf, Tell tell)
    : ctx_(ctx),
      world_(world),
      config_(config),
      trainer_(trainer),
      schedule_(schedule),
      hf_(std::move(hf)),
      tell_(std::move(tell)) {
  const CheckpointConfig& checkpoint = config.checkpoint;
  if (checkpoint.save.empty()) return;
  if (checkpoint.non_persistent_ckpt_type == NonPersistentType::global)
    non_persistent_ = non_persistent_folder(checkpoint, checkpoint.save);
  agree(world, "", [&] {
    if (world.rank() != 0) return "";
    if (!non_persistent_.empty() && std::filesystem::weakly_canonical(non_persistent_ + "/") ==
                                        std::filesystem::weakly_canonical(checkpoint.save + "/"))
      throw ConfigError(fmt::format(
          "--non-persistent-global-ckpt-dir {}: it is the folder of --save, whose checkpoints would be "
          "deleted; give another one",
          non_persistent_));
    lock_ = FolderLock(checkpoint.save, "megatron");
    if (!non_persistent_.empty()) non_persistent_lock_ = FolderLock(non_persistent_, "megatron");
    // Read once: the folder may be gone when a checkpoint is saved.
    if (hf_) assets_ = source_files(hf_->directory(), hf_->weights().files());
    return "";
  });
}

void RunCheckpoints::tell(const std::string& line) const {
  if (world_.rank() == 0 && tell_) tell_(line);
}

TrainState RunCheckpoints::load() {
  const CheckpointConfig& checkpoint = config_.checkpoint;
  if (!checkpoint.save.empty() && !lock_.held())
    tell(fmt::format("{} cannot be locked: take care that no other run saves into it", checkpoint.save));
  // The first rank looks, so that all see the same however their file systems lag behind.
  const std::string found =
      agree(world_, "", [&] { return world_.rank() == 0 ? to_text(load_places(checkpoint)) : ""; })[0];
  TrainState progress;
  if (load_from(places_from_text(found), progress)) return progress;
  if (!checkpoint.load.empty() && checkpoint.exit_on_missing_checkpoint)
    throw ConfigError(fmt::format("--load {}: there is no checkpoint", checkpoint.load));
  if (!checkpoint.load.empty())
    tell(fmt::format("no checkpoint in {} yet: training begins at iteration 0", checkpoint.load));
  if (!checkpoint.pretrained_checkpoint.empty()) {
    const LoadPlace place = named_place("--pretrained-checkpoint", checkpoint.pretrained_checkpoint);
    agree(world_, "", [&] {
      take(place, true);
      return "";
    });
    tell(fmt::format("weights from {}", place.path));
  } else if (hf_) {
    trainer_.set_weights(ctx_, [&] { hf_->load(ctx_, trainer_.parameters()); });
    tell(fmt::format("weights from {}", hf_->directory()));
  }
  return progress;
}

// Ranks try the same one together; where some rank finds damage, all go to the next.
bool RunCheckpoints::load_from(const std::vector<LoadPlace>& places, TrainState& progress) {
  const bool resume = !config_.checkpoint.finetune;
  std::string damage;
  for (const LoadPlace& place : places) {
    Taken taken;
    const std::vector<std::string> damages = agree(world_, "", [&]() -> std::string {
      try {
        taken = take(place, !resume);
        return "";
      } catch (const DamagedCheckpoint& error) {
        return error.what();
      }
    });
    const auto damaged = std::ranges::find_if(damages, [](const std::string& text) { return !text.empty(); });
    if (damaged == damages.end()) {
      tell(fmt::format("loaded {}{}", place.path, damage.empty() ? "" : ", the newest that is sound"));
      tell_report(taken);
      progress = std::move(taken.progress);
      loaded_rerun_ = progress.rerun.is_object();
      if (resume && place.path.starts_with(config_.checkpoint.save + "/iter_")) saved_ = progress.iteration;
      if (const auto& iteration = config_.checkpoint.override_ckpt_iteration; resume && iteration)
        progress.iteration = *iteration;
      return true;
    }
    damage = *damaged;
    tell(damage);
  }
  if (damage.empty()) return false;
  throw ConfigError(fmt::format("--load {}: none of its {} checkpoints can be read; the oldest: {}",
                                config_.checkpoint.load, places.size(), damage));
}

RunCheckpoints::Taken RunCheckpoints::take(const LoadPlace& place, bool weights_only) {
  const CheckpointConfig& checkpoint = config_.checkpoint;
  Taken taken;
  const TensorSource source = open_place(place, checkpoint.verify_integrity, taken.notes);
  const LoadOptions options{.optimizer = !weights_only && checkpoint.load_optim,
                            .masters = checkpoint.load_main_params_from_ckpt,
                            .strictness = checkpoint.dist_ckpt_strictness};
  if (options.optimizer) check_schedule(source);
  taken.report = load_run(ctx_, source, trainer_, options);
  const TrainingState& state = source.state;
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

void RunCheckpoints::tell_report(const Taken& taken) {
  for (const std::string& note : taken.notes) tell(note);
  const Strictness strictness = config_.checkpoint.dist_ckpt_strictness;
  const bool raises = strictness == Strictness::raise_unexpected || strictness == Strictness::raise_all;
  if (!raises && strictness != Strictness::log_unexpected && strictness != Strictness::log_all) return;
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

void RunCheckpoints::check_schedule(const TensorSource& source) {
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

bool RunCheckpoints::save_at_interval(const TrainState& progress) {
  const CheckpointConfig& checkpoint = config_.checkpoint;
  if (checkpoint.save.empty()) return false;
  const auto due = [&](int64_t every) { return every > 0 && progress.iteration % every == 0; };
  if (due(checkpoint.save_interval)) return save(progress);
  if (!non_persistent_.empty() && due(checkpoint.non_persistent_save_interval))
    return save_to(false, progress);
  return false;
}

bool RunCheckpoints::save(const TrainState& progress) { return save_to(true, progress); }

const std::string& RunCheckpoints::root_of(bool persistent) const {
  return persistent ? config_.checkpoint.save : non_persistent_;
}

bool RunCheckpoints::save_to(bool persistent, const TrainState& progress) {
  const TraceRange range(ctx_.tracer, "save checkpoint");
  if (saver_.busy()) {
    tell(fmt::format("waiting for the save of iteration {}", begun_.iteration));
    finish_saver();
  }
  attempt({persistent, progress.iteration}, [&] {
    if (config_.checkpoint.async_save)
      saver_.start(ctx_, world_, request(persistent, progress));
    else
      published(save_checkpoint(ctx_, world_, request(persistent, progress), &plans_));
  });
  return !begun_.failed;
}

SaveRequest RunCheckpoints::request(bool persistent, const TrainState& progress) {
  SaveRequest request{.root = root_of(persistent),
                      .tensors = checkpoint_tensors(ctx_, trainer_, config_.checkpoint.save_optim)};
  TrainingState& state = request.state;
  state.iteration = progress.iteration;
  state.consumed_samples = progress.consumed_samples;
  state.consumed_valid_samples = progress.validated_samples;
  state.skipped_samples = progress.skipped_samples;
  state.without_update = progress.without_update;
  state.optimizer_steps = trainer_.steps_taken();
  state.seed = static_cast<uint64_t>(config_.rng.seed);
  state.config = config_.to_json();
  state.schedule = schedule_state(schedule_);
  if (config_.precision.fp16) state.loss_scale = trainer_.loss_scale().state();
  state.rerun = progress.rerun;
  state.user = progress.user;
  request.assets = assets_;
  return request;
}

void RunCheckpoints::poll() {
  if (!saver_.busy()) return;
  attempt(begun_, [&] {
    if (const std::optional<std::string> path = saver_.poll(world_)) published(*path);
  });
}

void RunCheckpoints::finish_saver() {
  attempt(begun_, [&] {
    if (const std::optional<std::string> path = saver_.finish(world_)) published(*path);
  });
}

// Where saving fails, it does on all ranks alike.
void RunCheckpoints::attempt(Begun begun, const std::function<void()>& save) {
  begun_ = std::move(begun);
  try {
    save();
  } catch (const CommError&) {
    throw;
  } catch (const std::exception& error) {
    begun_.failed = true;
    tell(fmt::format("iteration {} is not saved, the run goes on: {}", begun_.iteration, error.what()));
  }
}

void RunCheckpoints::published(const std::string& path) {
  tell(fmt::format("saved {}", path));
  const CheckpointConfig& checkpoint = config_.checkpoint;
  const bool persistent = begun_.persistent;
  if (persistent) saved_ = begun_.iteration;
  if (world_.rank() != 0) return;
  const Retention policy = persistent ? Retention{checkpoint.most_recent_k, checkpoint.save_retain_interval}
                                      : Retention{.most_recent = 1};
  try {
    retain_checkpoints(root_of(persistent), begun_.iteration, policy);
  } catch (const std::exception& error) {
    tell(fmt::format("older checkpoints stay: {}", error.what()));
  }
}

void RunCheckpoints::finish(const TrainState& progress) {
  if (config_.checkpoint.save.empty()) return;
  finish_saver();
  const bool has_news = progress.rerun.is_object() && !loaded_rerun_;
  if (saved_ == progress.iteration && !has_news) return;
  begun_ = {true, progress.iteration};
  published(save_checkpoint(ctx_, world_, request(true, progress), &plans_));
}

}  // namespace megatron
