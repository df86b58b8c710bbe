#pragma once

#include <string>
#include <vector>

#include "megatron/checkpoint/checkpoint_kind.h"
#include "megatron/checkpoint/tensor_source.h"
#include "megatron/config/schema/checkpoint_config.h"

namespace megatron {

// A checkpoint that a run may begin from.
struct LoadPlace {
  CheckpointKind kind = CheckpointKind::none;
  std::string path;
  int64_t iteration = 0;  // of ours alone
  bool persistent = true;
  bool local = false;  // on disks of the ranks' machines; path is the set
};

// What --load offers, best first: the newest of its own and of the non-persistent checkpoints, then older
// ones, in case files are damaged; or the one of --ckpt-step; or one that Megatron-LM wrote. Empty where
// there is none. A ConfigError where what is named is not there, or is no checkpoint.
std::vector<LoadPlace> load_places(const CheckpointConfig& config);

// Whether a run saved it that makes experts of a dense checkpoint of another folder.
bool has_own_experts(const Config& config, const LoadPlace& place);

// The one checkpoint that a path names, of any kind that can be trained from. A ConfigError, which begins
// with `flag`, where there is none.
LoadPlace named_place(const std::string& flag, const std::string& path);

// What one rank has found, for the others.
std::string places_to_text(const std::vector<LoadPlace>& places);
std::vector<LoadPlace> places_from_text(const std::string& text);

// Opens it; `notes` takes what its reader should know. `only_reader`: the run has one rank.
TensorSource open_place(const LoadPlace& place, bool verify, bool only_reader,
                        std::vector<std::string>& notes);

// The model of the checkpoint that --load names, of the newest or that of a step: what its run had changed of
// the fields of `model`. Null where there is none, or it does not say.
Json checkpoint_model_settings(const std::string& root, std::optional<int64_t> step);
// Its layout, as layout_settings(); null where it does not say.
Json checkpoint_layout_settings(const std::string& root, std::optional<int64_t> step);

// Whether a run has gone on from the checkpoints of `root` without a non-persistent one, which was saved
// behind `base`: somebody went back to before it (--ckpt-step, the tracker), and has saved since.
bool is_left_behind(const std::optional<BaseCheckpoint>& base, int64_t iteration, const std::string& root);

// The folder of non-persistent checkpoints beside those of `root`.
std::string non_persistent_folder(const CheckpointConfig& config, const std::string& root);

// The sizes of the model in which a checkpoint's configuration and the run's differ, for people; "" where
// none do, or it has none.
std::string other_sizes(const Json& saved, const Config& config);

}  // namespace megatron
