// Opening a torch (legacy) checkpoint: one pickle for each tensor, pipeline and expert rank.
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <numeric>

#include "megatron/base/problems.h"
#include "megatron/bridge/megatron/args.h"
#include "megatron/bridge/megatron/common_state.h"
#include "megatron/bridge/megatron/parts.h"

namespace megatron {

namespace fs = std::filesystem;

namespace {

struct RankFile {
  int64_t tensor = 0, pipeline = 0, expert = 0;
  std::shared_ptr<const TorchArchive> archive;
};

// A rank's tensor before it meets those of other ranks.
struct RankTensor {
  const RankFile* file;
  const PickleValue* value;
  int64_t expert = -1;  // global
};

// "mp_rank_01_002_003": what stands behind the tensor rank is the pipeline and the expert rank, where there
// is more than one of each.
std::optional<RankFile> parse_folder(std::string_view name, const MegatronLayout& layout) {
  if (!name.starts_with("mp_rank_")) return {};
  name.remove_prefix(8);
  std::vector<int64_t> numbers;
  while (true) {
    int64_t number = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
    if (error != std::errc() || number < 0) return {};
    numbers.push_back(number);
    name.remove_prefix(static_cast<size_t>(end - name.data()));
    if (name.empty()) break;
    if (name[0] != '_') return {};
    name.remove_prefix(1);
  }
  const size_t wanted = 1 + (layout.pipeline > 1) + (layout.expert > 1);
  if (numbers.size() != wanted) return {};
  RankFile file;
  file.tensor = numbers[0];
  if (layout.pipeline > 1) file.pipeline = numbers[1];
  if (layout.expert > 1) file.expert = numbers.back();
  return file;
}

std::shared_ptr<const TorchArchive> open_archive(const fs::path& folder) {
  const std::string path = (folder / "model_optim_rng.pt").string();
  return std::make_shared<const TorchArchive>(FileSlice::whole(path), path);
}

// A model's rank as TP splits it.
enum class Split { none, rows, gate_up, parts, columns };

Split split_of(std::string_view name, const ModelConfig& model) {
  const auto has = [&](std::string_view part) { return name.find(part) != std::string_view::npos; };
  const bool matrix = name.ends_with(".weight");
  if (!key_parts(name).names) {
    if (has("linear_fc1.")) return model.gated_linear_unit ? Split::gate_up : Split::rows;
    for (std::string_view part : {"word_embeddings.weight", "output_layer.weight", "linear_qkv.",
                                  "linear_q_proj.", "linear_q_up_proj.", "linear_kv_up_proj.", ".A_log",
                                  ".dt_bias", "mixer.D", "mixer.norm.", "softmax_offset"})
      if (has(part)) return Split::rows;
    for (std::string_view part : {"linear_proj.", "linear_fc2.", "out_proj."})
      if (has(part) && matrix && !has("post_layernorm")) return Split::columns;
    return Split::none;
  }
  return Split::parts;
}

Shape local_shape(const Tensor& tensor, bool expert) {
  Shape shape;
  if (expert) shape.push_back(1);
  for (int64_t size : tensor.shape()) shape.push_back(size);
  return shape;
}

class LegacyMerger {
 public:
  LegacyMerger(const ModelConfig& model, const MegatronLayout& layout) : model_(model), layout_(layout) {}

  void add(const RankFile& file, std::string_view theirs, int64_t first_layer, const PickleValue& value);
  std::vector<MegatronTensor> finish(Problems& problems);

 private:
  MegatronTensor merge(const std::string& name, const std::vector<RankTensor>& ranks,
                       Problems& problems) const;

  const ModelConfig& model_;
  const MegatronLayout& layout_;
  std::map<std::string, std::vector<RankTensor>> groups_;
};

// Takes the rank's own number off "experts.local_experts.3.linear_fc1.weight" or
// "experts.linear_fc1.weight3".
std::optional<int64_t> take_local_expert(std::string& name) {
  constexpr std::string_view kLocal = "mlp.experts.local_experts.", kGrouped = "mlp.experts.linear_fc",
                             kOurs = "mlp.experts.experts.";
  size_t at = name.find(kLocal), begin, end;
  if (at != std::string::npos) {
    begin = at + kLocal.size();
    end = name.find('.', begin);
    if (end == std::string::npos) return {};
  } else {
    at = name.find(kGrouped);
    if (at == std::string::npos) return {};
    begin = name.find_last_not_of("0123456789") + 1;
    end = name.size();
  }
  int64_t expert = 0;
  const auto parsed = std::from_chars(name.data() + begin, name.data() + end, expert);
  if (parsed.ec != std::errc() || parsed.ptr != name.data() + end || expert < 0 || expert > 1 << 20)
    return {};
  if (name.compare(at, kLocal.size(), kLocal) == 0)
    name = name.substr(0, at) + std::string(kOurs) + name.substr(end + 1);
  else
    name = name.substr(0, at) + std::string(kOurs) + name.substr(at + 12, begin - at - 12);
  return expert;
}

void LegacyMerger::add(const RankFile& file, std::string_view theirs, int64_t first_layer,
                       const PickleValue& value) {
  std::string name = our_name(theirs);
  constexpr std::string_view kLayers = "decoder.layers.";
  if (name.starts_with(kLayers)) {
    int64_t layer = 0;
    const char* begin = name.data() + kLayers.size();
    const auto parsed = std::from_chars(begin, name.data() + name.size(), layer);
    if (parsed.ec != std::errc() || layer < 0 || layer > 1 << 20) return;
    name = std::string(kLayers) + std::to_string(layer + first_layer) + parsed.ptr;
  }
  // The last stage has a copy of a tied embedding.
  if (name == "output_layer.weight" && model_.share_embeddings_and_output_weights) return;
  RankTensor tensor{&file, &value};
  if (const std::optional<int64_t> local = take_local_expert(name))
    tensor.expert = file.expert * (model_.num_moe_experts / layout_.expert) + *local;
  groups_[name].push_back(tensor);
}

MegatronTensor LegacyMerger::merge(const std::string& name, const std::vector<RankTensor>& ranks,
                                   Problems& problems) const {
  const bool expert = ranks[0].expert >= 0;
  const int rows = expert ? 1 : 0;
  const int64_t size = expert ? layout_.expert_tensor : layout_.tensor;
  const RankFile& first = *ranks[0].file;
  const Tensor sample = first.archive->tensor(*ranks[0].value, name);
  Shape local = local_shape(sample, expert), global = local;
  const Split split = split_of(name, model_);
  if (split == Split::columns)
    global[-1] *= size;
  else if (split != Split::none)
    global[rows] *= size;
  if (expert) global[0] = model_.num_moe_experts;
  MegatronTensor ours{name, sample.dtype(), global, {}};
  std::vector<int64_t> parts = split == Split::parts ? part_rows(name, model_)
                               : split == Split::gate_up
                                   ? std::vector<int64_t>{global[rows] / 2, global[rows] / 2}
                                   : std::vector<int64_t>{global[rows]};
  if (std::accumulate(parts.begin(), parts.end(), int64_t{0}) != global[rows] ||
      std::ranges::any_of(parts, [&](int64_t part) {
        return split != Split::none && split != Split::columns && part % size != 0;
      })) {
    problems.add("{}: {} on {} tensor-parallel ranks does not fit the arguments", name, local, size);
    return ours;
  }
  for (const RankTensor& rank : ranks) {
    const Tensor tensor = rank.file->archive->tensor(*rank.value, name);
    if (tensor.dtype() != ours.dtype || !(local_shape(tensor, expert) == local)) {
      problems.add("{}: {} in {}, but {}{} in {}", name, tensor, rank.file->archive->origin(), ours.dtype,
                   local, first.archive->origin());
      return ours;
    }
    const int64_t place = rank.file->tensor % size;
    ShardSpec shard;
    Shape one = global;
    if (expert) one[0] = 1;
    shard = split == Split::none ? ShardSpec::whole(one)
            : split == Split::columns
                ? ShardSpec::split(one, one.rank() - 1, static_cast<int>(place), static_cast<int>(size))
                : ShardSpec::split_parts(one, rows, parts, static_cast<int>(place), static_cast<int>(size));
    if (expert) {
      shard.global_shape = global;
      for (ShardBlock& block : shard.blocks) block.global_offset[0] = rank.expert;
    }
    const std::shared_ptr<const TorchArchive> archive = rank.file->archive;
    ours.pieces.push_back({std::move(shard), [archive, value = rank.value, name, local, expert] {
                             const Tensor piece = archive->tensor(*value, name);
                             return expert ? piece.view(local) : piece;
                           }});
  }
  return ours;
}

std::vector<MegatronTensor> LegacyMerger::finish(Problems& problems) {
  std::vector<MegatronTensor> tensors;
  for (const auto& [name, ranks] : groups_) {
    if (std::ranges::any_of(ranks, [&](const RankTensor& rank) {
          return rank.expert >= model_.num_moe_experts && rank.expert >= 0;
        })) {
      problems.add("{}: more experts than args.num_experts ({})", name, model_.num_moe_experts);
      continue;
    }
    MegatronTensor tensor = merge(name, ranks, problems);
    if (!problems.empty()) continue;
    std::vector<ShardSpec> sources;
    for (const MegatronPiece& piece : tensor.pieces) sources.push_back(piece.shard);
    const ShardSpec whole = ShardSpec::whole(tensor.shape);
    if (!plan_transfers(sources, {&whole, 1}).missing.empty())
      problems.add("{}: files of some ranks are missing", name);
    tensors.push_back(std::move(tensor));
  }
  std::ranges::sort(tensors, {}, &MegatronTensor::name);
  return tensors;
}

// The tensors of one model chunk of a rank, by the names within Megatron's model.
using Chunk = std::vector<std::pair<std::string_view, const PickleValue*>>;

Chunk chunk_tensors(const PickleValue& model, const std::string& origin) {
  Chunk chunk;
  const auto entries = model.entries();
  for (size_t i = 0; i + 1 < entries.size(); i += 2) {
    const std::string_view name = entries[i]->text;
    if (name == "language_model")
      throw ConfigError(
          fmt::format("{}: the model is one from before Megatron-Core; convert it with Megatron-LM's "
                      "tools/checkpoint to a core model first",
                      origin));
    if (entries[i + 1]->is(PickleKind::tensor) && !name.ends_with("_extra_state"))
      chunk.emplace_back(name, entries[i + 1]);
  }
  return chunk;
}

int64_t layers_in(const Chunk& chunk) {
  int64_t layers = 0;
  for (const auto& [name, value] : chunk) {
    constexpr std::string_view kLayers = "decoder.layers.";
    int64_t layer = 0;
    if (name.starts_with(kLayers) &&
        std::from_chars(name.data() + kLayers.size(), name.data() + name.size(), layer).ec == std::errc() &&
        layer < 1 << 20)
      layers = std::max(layers, layer + 1);
  }
  return layers;
}

std::vector<RankFile> open_ranks(const std::string& directory, const MegatronLayout& layout) {
  std::vector<RankFile> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    std::optional<RankFile> file = parse_folder(entry.path().filename().string(), layout);
    if (!file) continue;
    file->archive = open_archive(entry.path());
    files.push_back(std::move(*file));
  }
  std::ranges::sort(files, {}, [](const RankFile& f) { return std::tuple(f.pipeline, f.tensor, f.expert); });
  return files;
}

}  // namespace

MegatronCheckpoint open_torch_legacy(const std::string& directory) {
  fs::path some;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory))
    if (entry.path().filename().string().starts_with("mp_rank_") &&
        fs::exists(entry.path() / "model_optim_rng.pt"))
      if (some.empty() || entry.path() < some) some = entry.path();
  const auto archive = open_archive(some);
  MegatronCheckpoint checkpoint;
  checkpoint.path = directory;
  take_common_state(archive->root(), *archive, checkpoint);
  if (!checkpoint.model)
    throw ConfigError(fmt::format("{}: it keeps no args, without which its ranks cannot be put together",
                                  archive->origin()));
  const MegatronLayout layout = layout_from_args(checkpoint.state.extra.at("megatron_lm").at("args"));
  const auto files = std::make_shared<const std::vector<RankFile>>(open_ranks(directory, layout));
  checkpoint.files = files;
  // Chunks of the virtual pipeline follow each other: all stages' first, then all stages' second.
  LegacyMerger merger(*checkpoint.model, layout);
  int64_t first_layer = 0;
  for (int64_t v = 0; v < layout.virtual_pipeline; ++v)
    for (int64_t p = 0; p < layout.pipeline; ++p) {
      int64_t layers = 0;
      for (const RankFile& file : *files) {
        if (file.pipeline != p) continue;
        const std::string key = layout.virtual_pipeline > 1 ? fmt::format("model{}", v) : "model";
        const PickleValue* model = file.archive->root().find(key);
        if (!model) throw ConfigError(fmt::format("{}: it has no {}", file.archive->origin(), key));
        const Chunk chunk = chunk_tensors(*model, file.archive->origin());
        layers = std::max(layers, layers_in(chunk));
        for (const auto& [name, value] : chunk) merger.add(file, name, first_layer, *value);
      }
      first_layer += layers;
    }
  Problems problems;
  checkpoint.tensors = merger.finish(problems);
  problems.raise(fmt::format("{}: its ranks do not fit together", directory));
  if (archive->root().find("optimizer"))
    checkpoint.notes.push_back(
        "the optimizer's state is left out: the torch format numbers its parameters; save as torch_dist to "
        "keep it");
  return checkpoint;
}

}  // namespace megatron
