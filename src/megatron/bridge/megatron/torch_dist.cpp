// Opening a torch_dist checkpoint.
#include <algorithm>
#include <filesystem>

#include "megatron/base/problems.h"
#include "megatron/bridge/megatron/common_state.h"
#include "megatron/checkpoint/checkpoint_kind.h"

namespace megatron {

namespace fs = std::filesystem;

namespace {

// metadata.json is written last; without it the checkpoint is the rest of a save that was killed.
void check_backend(const std::string& directory) {
  const std::string path = directory + "/metadata.json";
  if (!fs::exists(path))
    throw ConfigError(
        fmt::format("{}: metadata.json is missing, so its save was not finished; name another", directory));
  const Json metadata = Json::read(path);
  const Json* backend = metadata.is_object() ? metadata.find("sharded_backend") : nullptr;
  if (!backend || !(*backend == Json("torch_dist")))
    throw ConfigError(fmt::format("{}: sharded_backend is {}, expected torch_dist", path,
                                  backend ? backend->dump() : "missing"));
}

// What was stored as one object: a list with the object of each shard.
const PickleValue& single(const PickleValue& root) {
  return root.is(PickleKind::list) && root.items.size() == 1 ? *root.items[0] : root;
}

void note_left_out(const std::vector<std::string>& keys, MegatronCheckpoint& checkpoint) {
  size_t buckets = 0, others = 0;
  std::string_view other;
  for (std::string_view key : keys) {
    if (key.find("optimizer.") != std::string_view::npos)
      ++buckets;
    else
      ++others, other = key;
  }
  if (buckets > 0)
    checkpoint.notes.push_back(fmt::format(
        "{} tensors of the optimizer are left out: they are pieces of buckets, whose layout only the run "
        "knew; save with --dist-ckpt-optim-fully-reshardable to keep them",
        buckets));
  if (others > 0)
    checkpoint.notes.push_back(fmt::format("{} tensors are left out, {} among them", others, other));
}

void take_objects(const DistCheckpoint& files, MegatronCheckpoint& checkpoint) {
  std::unique_ptr<TorchArchive> archive;
  const std::string path = files.directory() + "/common.pt";
  if (const DistObject* common = files.find_object("common_state/shard_0_1"))
    archive = files.object(*common);
  else if (fs::exists(path))
    archive = std::make_unique<TorchArchive>(FileSlice::whole(path), path);
  if (!archive)
    throw ConfigError(fmt::format("{}: neither common_state nor common.pt is there; it is not Megatron-LM's",
                                  files.directory()));
  take_common_state(single(archive->root()), *archive, checkpoint);
  size_t extra = 0, random = 0;
  for (const DistObject& object : files.metadata().objects) {
    if (object.key.find("._extra_state") != std::string::npos) ++extra;
    if (object.key.starts_with("rng_state")) ++random;
  }
  if (extra > 0) checkpoint.notes.push_back(fmt::format("{} extra states of fp8 layers are left out", extra));
  if (random > 0)
    checkpoint.notes.push_back("states of random number generators are left out: ours are counters");
}

}  // namespace

const MegatronTensor* MegatronCheckpoint::find(std::string_view name) const {
  const auto found = std::ranges::lower_bound(tensors, name, {}, &MegatronTensor::name);
  return found != tensors.end() && found->name == name ? &*found : nullptr;
}

MegatronCheckpoint open_torch_dist(const std::string& directory) {
  check_backend(directory);
  const auto files = std::make_shared<const DistCheckpoint>(directory);
  MegatronCheckpoint checkpoint;
  checkpoint.path = directory;
  checkpoint.files = files;
  std::vector<std::string> left_out;
  checkpoint.tensors = dist_tensors(*files, [&](std::string_view key) { left_out.emplace_back(key); });
  take_objects(*files, checkpoint);
  note_left_out(left_out, checkpoint);
  return checkpoint;
}

MegatronCheckpoint open_megatron(const std::string& path) {
  const FoundCheckpoint found = recognise_checkpoint(path);
  if (found.kind == CheckpointKind::torch_dist) return open_torch_dist(found.path);
  if (found.kind == CheckpointKind::torch) return open_torch_legacy(found.path);
  throw ConfigError(
      fmt::format("{} holds {}, expected one of Megatron-LM (.metadata and *.distcp, or mp_rank_*)", path,
                  name_of(found.kind)));
}

}  // namespace megatron
