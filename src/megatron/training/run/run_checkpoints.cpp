#include "megatron/training/run/run_checkpoints.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "megatron/base/hash.h"
#include "megatron/bridge/auto_bridge.h"
#include "megatron/bridge/source_files.h"
#include "megatron/checkpoint/agree.h"
#include "megatron/checkpoint/directory.h"
#include "megatron/checkpoint/load.h"
#include "megatron/checkpoint/reshard.h"
#include "megatron/comm/string_collectives.h"
#include "megatron/training/run/load_places.h"
#include "megatron/training/run/schedule_state.h"
#include "megatron/training/setup/checkpoint_tensors.h"
#include "megatron/training/setup/optimizer_setup.h"
#include "megatron/training/step/rank_trainer.h"

namespace megatron {
namespace {

// Of this run on a local disk: runs that save into different folders do not meet there.
std::string local_folder(const CheckpointConfig& config) {
  const std::string save = std::filesystem::weakly_canonical(config.save + "/").string();
  return fmt::format("{}/run_{:016x}", config.non_persistent_local_ckpt_dir, hash_text(save));
}

// A process that is known to have had the lock, or to have tried to get it, was left out of this run, and
// saves nothing any more.
FolderLock lock_folder(const std::string& folder, const std::string& owner,
                       const std::set<std::string>& known) try {
  return FolderLock(folder, owner);
} catch (const FolderInUse& error) {
  if (known.count(error.holder()) == 0) throw;
  return {};
}

// Who may have a folder that the first rank is about to lock: it may be stopped then, before or after the
// file tells its name, and is left out of the run, but keeps the lock.
void add_claim(const std::string& folder, const std::string& owner, std::set<std::string>& claims) {
  claims.insert(owner);
  if (const std::string unnamed = FolderLock::unnamed_holder(folder); !unnamed.empty())
    claims.insert(unnamed);
}

// All ranks add the first one's claims to those that they know of, also ranks that waited in reserve, or
// idled: one of them may be the first rank of the next generation. Gives those of generations before.
std::set<std::string> share_claims(const ProcessGroup& world, const std::set<std::string>& claims,
                                   std::set<std::string>& known) {
  std::set<std::string> own = known, before = known;
  own.insert(claims.begin(), claims.end());
  const std::vector<std::string> all = all_gather_strings(world, fmt::format("{}", fmt::join(own, "\n")));
  for (size_t rank = 0; rank < all.size(); ++rank)
    for (size_t at = 0; at < all[rank].size();) {
      const size_t end = std::min(all[rank].find('\n', at), all[rank].size());
      known.insert(all[rank].substr(at, end - at));
      if (rank != static_cast<size_t>(world.rank())) before.insert(all[rank].substr(at, end - at));
      at = end + 1;
    }
  return before;
}

// Where some rank holds state that no other has, what processes keep in their memory is copied to others.
bool replicates_memory(const Config& config, const ParallelContext& parallel) {
  const InProcessRestartConfig& restart = config.inprocess_restart;
  // Unequal replicas hold all experts each, also where a rank has no peers among them.
  const int replicas = parallel.replicas();
  return restart.enabled && restart.snapshot_interval > 0 &&
         has_unshared_state(config, replicas, parallel.unequal() ? replicas : parallel.size(Axis::edp));
}

}  // namespace

RunCheckpoints::RunCheckpoints(RankContext& ctx, const ProcessGroup& world, const Config& config,
                               RankTrainer& trainer, RateSchedule& schedule,
                               std::shared_ptr<const AutoBridge> hf, bool restarted,
                               std::set<std::string>& lock_holders, Tell tell)
    : ctx_(ctx),
      world_(world),
      config_(config),
      trainer_(trainer),
      schedule_(schedule),
      hf_(std::move(hf)),
      restarted_(restarted),
      tell_(std::move(tell)),
      loader_(ctx, world, config, trainer, schedule, hf_, restarted,
              [this](const std::string& line) { this->tell(line); }) {
  const CheckpointConfig& checkpoint = config.checkpoint;
  if (checkpoint.save.empty()) return;
  if (checkpoint.non_persistent_ckpt_type == NonPersistentType::global)
    non_persistent_ = non_persistent_folder(checkpoint, checkpoint.save);
  const std::string owner = FolderLock::owner_of("megatron");
  std::set<std::string> claims;
  if (world.rank() == 0) {
    add_claim(checkpoint.save, owner, claims);
    if (!non_persistent_.empty()) add_claim(non_persistent_, owner, claims);
  }
  const std::set<std::string> left_out = share_claims(world, claims, lock_holders);
  agree(world, "", [&]() -> std::string {
    if (world.rank() != 0) return "";
    if (!non_persistent_.empty() && std::filesystem::weakly_canonical(non_persistent_ + "/") ==
                                        std::filesystem::weakly_canonical(checkpoint.save + "/"))
      throw ConfigError(fmt::format(
          "--non-persistent-global-ckpt-dir {}: it is the folder of --save, whose checkpoints would be "
          "deleted; give another one",
          non_persistent_));
    lock_ = lock_folder(checkpoint.save, owner, left_out);
    if (!non_persistent_.empty()) non_persistent_lock_ = lock_folder(non_persistent_, owner, left_out);
    if (hf_) keep_files(source_files(hf_->directory(), hf_->weights().files()));
    if (restarted_) recall_files();
    return "";
  });
  if (checkpoint.replication && replicates_memory(config, trainer.parallel()))
    memory_places_ = ReplicaPlaces::of(world, checkpoint.replication_factor, checkpoint.replication_jump);
  if (checkpoint.non_persistent_ckpt_type == NonPersistentType::local)
    local_.emplace(
        ctx, world,
        LocalCheckpoints::Options{.folder = local_folder(checkpoint),
                                  .fully_parallel = checkpoint.non_persistent_local_ckpt_algo ==
                                                    LocalCheckpointAlgo::fully_parallel,
                                  .factor = checkpoint.replication ? checkpoint.replication_factor : 1,
                                  .jump = checkpoint.replication_jump});
}

void RunCheckpoints::tell(const std::string& line) const {
  if (world_.rank() == 0 && tell_) tell_(line);
}

TrainState RunCheckpoints::load() {
  const CheckpointConfig& checkpoint = config_.checkpoint;
  if (!checkpoint.save.empty() && !lock_.held())
    tell(fmt::format("{} cannot be locked: take care that no other run saves into it", checkpoint.save));
  if (local_ && !local_->note().empty()) tell(local_->note());
  const LocalSets local = local_ ? local_->candidates() : LocalSets();
  // The first rank looks, so that all see the same however their file systems lag behind.
  const std::string found =
      agree(world_, "", [&] { return world_.rank() == 0 ? places_to_text(places_to_load(local)) : ""; })[0];
  TrainState progress;
  if (load_from(places_from_text(found), local, progress)) return progress;
  keep_files({});
  if (!checkpoint.load.empty() && checkpoint.exit_on_missing_checkpoint)
    throw ConfigError(fmt::format("--load {}: there is no checkpoint", checkpoint.load));
  if (!checkpoint.load.empty())
    tell(fmt::format("no checkpoint in {} yet: training begins at iteration 0", checkpoint.load));
  if (!checkpoint.pretrained_checkpoint.empty()) {
    const LoadPlace place = named_place("--pretrained-checkpoint", checkpoint.pretrained_checkpoint);
    agree(world_, "", [&] {
      loader_.take(place, true);
      keep_files_of({place});
      return "";
    });
    tell(fmt::format("weights from {}", place.path));
  } else if (hf_) {
    trainer_.set_weights(ctx_, [&] { loader_.read_hf_weights(); });
    tell(fmt::format("weights from {}", hf_->directory()));
  }
  loader_.load_language_model();
  return progress;
}

// What goes into each checkpoint beside the tensors is read once: its folder may be gone when one is saved.
void RunCheckpoints::keep_files(std::vector<CheckpointAsset> files) {
  if (world_.rank() != 0 || config_.checkpoint.save.empty()) return;
  if (!files.empty()) assets_ = std::move(files);
  const auto of_tokenizer = [](const CheckpointAsset& asset) { return is_tokenizer_file(asset.name); };
  if (!config_.checkpoint.save_tokenizer_assets)
    std::erase_if(assets_, of_tokenizer);
  else if (config_.tokenizer.tokenizer_type == TokenizerKind::huggingface &&
           std::ranges::none_of(assets_, of_tokenizer))
    std::ranges::move(tokenizer_files(config_.tokenizer.tokenizer_model), std::back_inserter(assets_));
}

// Without --hf the run hands on what the first of the checkpoints keeps that is whole, which a set on local
// disks is not. Experts made of a dense model are no model of its configuration.
void RunCheckpoints::keep_files_of(const std::vector<LoadPlace>& places) {
  if (hf_ || world_.rank() != 0) return;
  std::vector<CheckpointAsset> files;
  const auto place = std::ranges::find_if(
      places, [](const LoadPlace& one) { return one.kind == CheckpointKind::megatron && !one.local; });
  if (place != places.end() && !config_.model.moe_use_upcycling)
    for (const std::string& name : assets_of(read_index(place->path)))
      if (name.starts_with(kSourceFolder)) files.push_back({name, read_asset(place->path, name)});
  keep_files(std::move(files));
}

// After a restart the state may come from memory alone. Files that have gone meanwhile end nothing.
void RunCheckpoints::recall_files() try {
  std::vector<LoadPlace> places = places_to_load({});
  if (const std::string& first = config_.checkpoint.pretrained_checkpoint; places.empty() && !first.empty())
    places = {named_place("--pretrained-checkpoint", first)};
  keep_files_of(places);
} catch (const Error& error) {
  tell(fmt::format("checkpoints will lack the model's own files: {}", error.what()));
}

std::vector<LoadPlace> RunCheckpoints::places_to_load(const LocalSets& local) const {
  // Sets on local disks come before others of the same iteration.
  const auto with_local = [&](const CheckpointConfig& config) {
    std::vector<LoadPlace> places = load_places(config);
    if (config.load.empty() || config.ckpt_step) return places;
    std::vector<LoadPlace> all;
    for (const LocalCheckpoints::Candidate& set : local)
      if (!is_left_behind(set.base, set.iteration, config.load))
        all.push_back({CheckpointKind::megatron, set.set, set.iteration, false, true});
    all.insert(all.end(), places.begin(), places.end());
    std::ranges::stable_sort(all, std::ranges::greater{}, &LoadPlace::iteration);
    return all;
  };
  // What upcycling has saved is where a requeued run goes on; --load has the dense model.
  if ((restarted_ || config_.model.moe_use_upcycling) && !config_.checkpoint.save.empty()) {
    CheckpointConfig own = config_.checkpoint;
    own.load = own.save;
    own.ckpt_step.reset();
    if (std::vector<LoadPlace> places = with_local(own); !places.empty()) return places;
  }
  return with_local(config_.checkpoint);
}

std::optional<TensorSource> RunCheckpoints::open_local(const LoadPlace& place, const LocalSets& local) {
  const auto set = std::ranges::find(local, place.path, &LocalCheckpoints::Candidate::set);
  std::vector<std::string> damages;
  std::optional<TensorSource> source = local_->restore(*set, describe(checkpoint_tensors(trainer_)), damages);
  for (const std::string& damage : damages) tell(damage);
  if (!source)
    tell(fmt::format("the machines that are left do not hold all of the local checkpoint of iteration {}",
                     place.iteration));
  return source;
}

std::optional<TrainState> RunCheckpoints::restore(MemorySnapshot& memory) {
  const std::vector<ShardedTensor> wanted = checkpoint_tensors(trainer_);
  const std::optional<TensorSource> source = memory.restore(world_, describe(wanted));
  if (!source) return {};
  TrainState progress = loader_.take(*source, false).progress;
  const std::string& save = config_.checkpoint.save;
  if (save.empty()) return progress;
  const std::string newest = agree(world_, "", [&]() -> std::string {
    const auto place = world_.rank() == 0 ? latest_checkpoint(save) : std::nullopt;
    return place ? std::to_string(place->iteration) : "-1";
  })[0];
  saved_ = std::stoll(newest);
  return progress;
}

void RunCheckpoints::keep(MemorySnapshot& memory, const TrainState& progress) {
  memory.keep(ctx_, checkpoint_tensors(trainer_), training_state(progress), change_order());
  if (memory_places_) memory.replicate(world_, *memory_places_);
}

// Ranks try the same one together; where some rank finds damage, all go to the next.
bool RunCheckpoints::load_from(const std::vector<LoadPlace>& places, const LocalSets& local,
                               TrainState& progress) {
  std::string damage;
  for (const LoadPlace& place : places) {
    const bool resume = restarted_ || !config_.checkpoint.finetune || has_own_experts(config_, place);
    std::optional<TensorSource> kept;
    if (place.local && !(kept = open_local(place, local))) continue;
    CheckpointLoader::Taken taken;
    const std::vector<std::string> damages = agree(world_, "", [&]() -> std::string {
      try {
        taken = kept ? loader_.take(*kept, !resume) : loader_.take(place, !resume);
        keep_files_of(kept ? places : std::vector{place});
        return "";
      } catch (const DamagedCheckpoint& error) {
        return error.what();
      }
    });
    const auto damaged = std::ranges::find_if(damages, [](const std::string& text) { return !text.empty(); });
    if (damaged == damages.end()) {
      tell(fmt::format("loaded {}{}", kept ? kept->path : place.path,
                       damage.empty() ? "" : ", the newest that is sound"));
      if (place.kind == CheckpointKind::megatron)
        loaded_base_ =
            place.persistent ? BaseCheckpoint{place.iteration, index_checksum(place.path)} : taken.base;
      loader_.tell_report(taken);
      progress = std::move(taken.progress);
      loaded_rerun_ = progress.rerun.is_object();
      if (resume && place.path.starts_with(config_.checkpoint.save + "/iter_")) saved_ = progress.iteration;
      if (const auto& iteration = config_.checkpoint.override_ckpt_iteration;
          resume && !restarted_ && iteration)
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

bool RunCheckpoints::saves_at(const TrainState& progress) const {
  const CheckpointConfig& checkpoint = config_.checkpoint;
  const auto due = [&](int64_t every) { return every > 0 && progress.iteration % every == 0; };
  return !checkpoint.save.empty() &&
         (due(checkpoint.save_interval) ||
          ((local_ || !non_persistent_.empty()) && due(checkpoint.non_persistent_save_interval)));
}

bool RunCheckpoints::is_time_to_save() const {
  const double minutes = config_.checkpoint.save_interval_in_mins;
  if (config_.checkpoint.save.empty() || minutes <= 0) return false;
  return std::chrono::steady_clock::now() - last_save_ >= std::chrono::duration<double>(60 * minutes);
}

bool RunCheckpoints::save_at_interval(const TrainState& progress) {
  const CheckpointConfig& checkpoint = config_.checkpoint;
  if (checkpoint.save.empty()) return false;
  const auto due = [&](int64_t every) { return every > 0 && progress.iteration % every == 0; };
  if (due(checkpoint.save_interval)) return save(progress);
  if (!due(checkpoint.non_persistent_save_interval)) return false;
  if (local_) return save_locally(progress);
  return !non_persistent_.empty() && save_to(false, progress);
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
  if (persistent) last_save_ = std::chrono::steady_clock::now();
  attempt({persistent, progress.iteration}, [&] {
    if (config_.checkpoint.async_save)
      saver_.start(ctx_, world_, request(persistent, progress));
    else
      published(save_checkpoint(ctx_, world_, request(persistent, progress), &plans_));
  });
  return !begun_.failed;
}

bool RunCheckpoints::save_locally(const TrainState& progress) {
  const TraceRange range(ctx_.tracer, "save local checkpoint");
  bool begun = false;
  attempt_local([&]() -> std::optional<int64_t> {
    if (local_->busy()) return local_->finish();
    return {};
  });
  attempt_local([&] {
    TrainingState state = training_state(progress);
    state.base = base();
    const bool async = config_.checkpoint.async_save;
    local_->save(state, checkpoint_tensors(trainer_, config_.checkpoint.save_optim), async, change_order());
    begun = true;
    return async ? std::nullopt : local_->finish();
  });
  return begun;
}

// What fails on one rank fails on all of them; the set before stays.
void RunCheckpoints::attempt_local(const std::function<std::optional<int64_t>()>& save) {
  try {
    if (const std::optional<int64_t> iteration = save())
      tell(fmt::format("saved iteration {} on local disks", *iteration));
  } catch (const CommError&) {
    throw;
  } catch (const std::exception& error) {
    tell(fmt::format("the run goes on: {}", error.what()));
  }
}

// What a non-persistent checkpoint of this moment stands behind, as the first rank sees it.
BaseCheckpoint RunCheckpoints::base() const {
  if (saver_.busy() && begun_.persistent) return {begun_.iteration, ""};
  BaseCheckpoint base = loaded_base_.value_or(BaseCheckpoint());
  try {
    if (const auto tracked = latest_checkpoint(config_.checkpoint.save))
      base = {tracked->iteration, index_checksum(tracked->path)};
  } catch (const std::exception&) {  // of a folder that cannot be read: the next save into it tells
  }
  const std::string text = broadcast_text(world_, fmt::format("{} {}", base.iteration, base.checksum), 0);
  const size_t blank = text.find(' ');
  return {std::stoll(text.substr(0, blank)), text.substr(blank + 1)};
}

bool RunCheckpoints::holds_back() const { return saver_.holds_back() || (local_ && local_->holds_back()); }

void RunCheckpoints::before_change(std::optional<size_t> group) {
  group ? saver_.before_change(ctx_, *group) : saver_.before_change(ctx_);
  if (local_) local_->before_change(group);
}

// On the CPU copies are complete before anything changes.
ChangeGroups RunCheckpoints::change_order() const {
  return ctx_.device.is_cpu() ? ChangeGroups() : trainer_.optimizer().change_groups();
}

TrainingState RunCheckpoints::training_state(const TrainState& progress) {
  TrainingState state;
  state.iteration = progress.iteration;
  state.consumed_samples = progress.consumed_samples;
  state.consumed_valid_samples = progress.validated_samples;
  state.skipped_samples = progress.skipped_samples;
  state.without_update = progress.without_update;
  state.optimizer_steps = trainer_.steps_taken();
  state.seed = static_cast<uint64_t>(config_.rng.seed);
  state.schedule = schedule_state(schedule_);
  if (config_.precision.fp16) state.loss_scale = trainer_.loss_scale().state();
  state.rerun = progress.rerun;
  state.user = progress.user;
  return state;
}

SaveRequest RunCheckpoints::request(bool persistent, const TrainState& progress) {
  SaveRequest request{.root = root_of(persistent),
                      .state = training_state(progress),
                      .tensors = checkpoint_tensors(trainer_, config_.checkpoint.save_optim)};
  request.state.config = config_.to_json();
  if (!persistent) request.state.base = base();
  request.assets = assets_;
  request.being_removed = old_.make_way(request.root);
  if (config_.checkpoint.async_save) request.change_order = change_order();
  return request;
}

void RunCheckpoints::poll() {
  if (local_ && local_->busy()) attempt_local([&] { return local_->poll(); });
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
  if (!saver_.busy()) old_.save_ended();
}

void RunCheckpoints::published(const std::string& path) {
  tell(fmt::format("saved {}", path));
  const CheckpointConfig& checkpoint = config_.checkpoint;
  const bool persistent = begun_.persistent;
  if (persistent) saved_ = begun_.iteration;
  if (world_.rank() != 0) return;
  const Retention policy = persistent ? Retention{checkpoint.most_recent_k, checkpoint.save_retain_interval}
                                      : Retention{.most_recent = 1};
  old_.retain(root_of(persistent), begun_.iteration, path, policy);
}

void RunCheckpoints::finish(const TrainState& progress) {
  if (config_.checkpoint.save.empty()) return;
  if (local_ && local_->busy()) attempt_local([&] { return local_->finish(); });
  finish_saver();
  const bool has_news = progress.rerun.is_object() && !loaded_rerun_;
  if (saved_ == progress.iteration && !has_news) return;
  begun_ = {true, progress.iteration};
  const auto save = [&] { return save_checkpoint(ctx_, world_, request(true, progress), &plans_); };
  std::string path;
  try {
    path = save();
  } catch (const CommError&) {
    throw;
  } catch (const Error&) {  // on all ranks alike, and no later save makes up for this one
    old_.finish();          // a quota may have too little room beside what is to go
    path = save();
  }
  published(path);
  old_.save_ended();  // evaluations may follow
}

}  // namespace megatron
