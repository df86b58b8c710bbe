// A checkpoint of ours as a torch_dist checkpoint.
#include <algorithm>
#include <filesystem>
#include <map>

#include "megatron/base/problems.h"
#include "megatron/bridge/megatron/convert.h"
#include "megatron/bridge/megatron/export_state.h"
#include "megatron/bridge/megatron/names.h"
#include "megatron/bridge/megatron/parts.h"
#include "megatron/checkpoint/directory.h"
#include "megatron/checkpoint/host_tensor.h"
#include "megatron/checkpoint/load.h"
#include "megatron/checkpoint/torch/dist_writer.h"
#include "megatron/config/resolve/model_settings.h"
#include "megatron/config/resolve/resolve.h"
#include "megatron/models/whole_model.h"

namespace megatron {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kChunkBytes = int64_t{1} << 30;  // well below what a zip archive without zip64 holds

// A range of rows of one of our tensors, and where it stands in a tensor of theirs.
struct Source {
  const StoredTensor* ours;
  int64_t layer = -1;  // of the first axis, if that is the layer
  int64_t first_row = 0;
};

struct TheirTensor {
  DType dtype;
  Shape shape;  // without the axis of layers
  std::vector<Source> sources;
};

using TheirTensors = std::map<std::string, TheirTensor>;

ModelConfig model_of(const CheckpointReader& reader) {
  const Json* model = reader.state().config.is_object() ? reader.state().config.find("model") : nullptr;
  const Json* layers = model && model->is_object() ? model->find("num_layers") : nullptr;
  if (!layers || *layers == Json(0))
    throw ConfigError(fmt::format(
        "{}: it does not say what model it holds; name a checkpoint that a run saved or --hf imported",
        reader.path()));
  Sources sources;
  sources.hf_origin = reader.path();
  sources.hf = model_settings(*model);
  return resolve(sources, {.purpose = Purpose::model, .allow_unavailable = true}).config.model;
}

// Whether Megatron-LM stacks the decoder's layers: its own rule, by settings.
bool stacks_layers(const ModelConfig& model) {
  const auto every = [](const Json& frequency) { return frequency.is_null() || frequency == Json(1); };
  return every(model.moe_layer_freq) && every(model.linear_attention_freq) && !model.is_hybrid_model &&
         model.hybrid_layer_pattern.empty() && model.layer_blocks.empty();
}

// "optimizer.master.X" is "optimizer.state.param." and the key of X.
std::pair<std::string, std::string> split_state(const std::string& name) {
  constexpr std::string_view kOptimizer = "optimizer.";
  if (!name.starts_with(kOptimizer)) return {"", name};
  const size_t dot = name.find('.', kOptimizer.size());
  std::string state = name.substr(kOptimizer.size(), dot - kOptimizer.size());
  if (state == "master") state = "param";
  return {"optimizer.state." + state + ".", name.substr(dot + 1)};
}

void add_tensor(const StoredTensor& ours, const std::string& prefix, const std::string& name,
                const ModelConfig& model, std::optional<DType> dtype,
                const std::function<bool(std::string_view)>& holds, TheirTensors& theirs) {
  StoredKey stored = stored_key(name, stacks_layers(model), holds);
  constexpr std::string_view kFinal = "decoder.final_layernorm.";  // which hybrids have under another name
  if (model.is_hybrid_model && name.starts_with(kFinal))
    stored.key = "decoder.final_norm." + name.substr(kFinal.size());
  const KeyParts parts = key_parts(name);
  int64_t row = 0;
  size_t index = 0;
  std::vector<int64_t> all = part_rows(name, model);
  if (all.empty()) all = {ours.shape.rank() > 0 ? ours.shape[0] : 1};
  for (const int64_t rows : all) {
    const std::string part = parts.count > 0 ? "." + std::string(parts.names[index]) : "";
    const bool weight = prefix.empty() && !name.ends_with(".expert_bias");
    TheirTensor& tensor = theirs[prefix + stored.key + part];
    tensor.dtype = weight ? dtype.value_or(ours.dtype) : ours.dtype;
    tensor.shape = ours.shape;
    if (ours.shape.rank() > 0) tensor.shape[0] = rows;
    tensor.sources.push_back({&ours, stored.stacked ? stored.layer : -1, row});
    row += rows;
    ++index;
  }
}

TheirTensors their_tensors(const CheckpointIndex& index, const ModelConfig& model,
                           std::optional<DType> dtype) {
  TheirTensors theirs;
  const auto holds = [&](std::string_view name) { return index.find(name) != nullptr; };
  const bool with_optimizer = std::ranges::any_of(index.tensors, [](const StoredTensor& tensor) {
    return tensor.name.starts_with("optimizer.exp_avg.");
  });
  for (const StoredTensor& ours : index.tensors) {
    if (ours.name.starts_with("fp8.")) continue;  // histories of delayed scaling
    const auto [prefix, name] = split_state(ours.name);
    add_tensor(ours, prefix, name, model, dtype, holds, theirs);
    // Where the weight itself is fp32, Megatron-LM's distributed optimizer still wants a master.
    if (with_optimizer && prefix.empty() && holds("optimizer.exp_avg." + name) &&
        !holds("optimizer.master." + name))
      add_tensor(ours, "optimizer.state.param.", name, model, dtype, holds, theirs);
  }
  return theirs;
}

void check_stacks(const TheirTensors& theirs, int64_t layers) {
  Problems problems;
  for (const auto& [key, tensor] : theirs)
    if (tensor.sources[0].layer >= 0 && static_cast<int64_t>(tensor.sources.size()) != layers)
      problems.add("{}: {} of {} layers have it", key, tensor.sources.size(), layers);
  problems.raise("layers that differ cannot be stacked as Megatron-LM's settings want it");
}

class Exporter {
 public:
  Exporter(CheckpointReader& reader, const ExportOptions& options) : reader_(reader), options_(options) {}

  void write(const std::string& directory, const TheirTensors& theirs, const ModelConfig& model) {
    DistWriter writer(directory, options_.shard_bytes);
    const bool with_optimizer = theirs.lower_bound("optimizer.") != theirs.end() &&
                                theirs.lower_bound("optimizer.")->first.starts_with("optimizer.");
    writer.add_object("common_state/shard_0_1", common_state_pickle(reader_.state(), model, with_optimizer));
    int64_t total = 0, done = 0;
    const auto bytes = [](const TheirTensor& tensor) {
      return tensor.shape.numel() * static_cast<int64_t>(size_of(tensor.dtype) * tensor.sources.size());
    };
    for (const auto& [key, tensor] : theirs) total += bytes(tensor);
    for (const auto& [key, tensor] : theirs) {
      if (options_.progress) options_.progress(key, done, total);
      write_tensor(writer, key, tensor, model.num_layers);
      done += bytes(tensor);
    }
    writer.finish();
  }

 private:
  void write_tensor(DistWriter& writer, const std::string& key, const TheirTensor& tensor, int64_t layers) {
    const bool stacked = tensor.sources[0].layer >= 0;
    Shape shape;
    if (stacked) shape.push_back(layers);
    for (int64_t size : tensor.shape) shape.push_back(size);
    writer.add_tensor(key, tensor.dtype, shape);
    for (const Source& source : tensor.sources)
      for (const Box& box : cut(tensor.shape, kChunkBytes / static_cast<int64_t>(size_of(tensor.dtype))))
        write_chunk(writer, source, box, stacked);
  }

  // `box`: of the tensor without the axis of layers.
  void write_chunk(DistWriter& writer, const Source& source, const Box& box, bool stacked) {
    Box theirs;
    if (stacked) theirs.offset.push_back(source.layer), theirs.extent.push_back(1);
    for (int d = 0; d < box.offset.rank(); ++d)
      theirs.offset.push_back(box.offset[d]), theirs.extent.push_back(box.extent[d]);
    writer.add_chunk(theirs, [&](const Box& within, const Tensor& target) {
      Box ours;
      for (int d = stacked ? 1 : 0; d < within.offset.rank(); ++d) {
        const int from = stacked ? d - 1 : d;
        ours.offset.push_back(within.offset[d] + box.offset[from] + (from == 0 ? source.first_row : 0));
        ours.extent.push_back(within.extent[d]);
      }
      const ShardedTensor part{source.ours->name, box_shard(source.ours->shape, ours),
                               target.view(ours.extent)};
      reader_.load(ctx_, {&part, 1});
    });
  }

  CheckpointReader& reader_;
  const ExportOptions& options_;
  RankContext ctx_;
};

}  // namespace

std::string export_megatron(const std::string& checkpoint, const std::string& root,
                            const ExportOptions& options) {
  if (fs::exists(root) && (!fs::is_directory(root) || !fs::is_empty(root)))
    throw ConfigError(fmt::format("{} is there already and is not empty; name a new directory", root));
  CheckpointReader reader(checkpoint);
  const ModelConfig model = model_of(reader);
  refuse_unlike_layouts(model, reader.path());
  const TheirTensors theirs = their_tensors(reader.index(), model, options.dtype);
  check_stacks(theirs, model.num_layers);
  // Weights without a run are a release in Megatron-LM's words.
  const int64_t iteration = reader.state().iteration;
  const std::string name = iteration == 0 ? "release" : iteration_name(iteration);
  const std::string final = root + "/" + name, partial = final + ".partial";
  fs::create_directories(partial);
  try {
    Exporter(reader, options).write(partial, theirs, model);
    write_file_atomically(partial + "/metadata.json",
                          R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1})");
    fs::rename(partial, final);
    write_file_atomically(root + "/latest_checkpointed_iteration.txt",
                          iteration == 0 ? "release" : std::to_string(iteration));
  } catch (...) {
    fs::remove_all(partial);
    throw;
  }
  return final;
}

}  // namespace megatron
