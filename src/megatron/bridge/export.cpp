#include <algorithm>
#include <filesystem>
#include <set>

#include "megatron/base/problems.h"
#include "megatron/bridge/convert.h"
#include "megatron/bridge/family.h"
#include "megatron/bridge/source_files.h"
#include "megatron/checkpoint/host_tensor.h"
#include "megatron/checkpoint/load.h"
#include "megatron/checkpoint/reshard.h"
#include "megatron/models/whole_model.h"

namespace megatron {

namespace fs = std::filesystem;

namespace {

// A tensor to be written, and which of ours it is made of.
struct HfTensor {
  std::string name;
  DType dtype;
  Shape shape;
  struct Piece {
    std::string ours;
    HfPart part;
  };
  std::vector<Piece> pieces;

  int64_t bytes() const { return shape.numel() * static_cast<int64_t>(size_of(dtype)); }
};

using HfTensors = std::map<std::string, HfTensor, std::less<>>;

HfTensors hf_tensors(const CheckpointIndex& index, const FamilyModel& model, std::optional<DType> dtype) {
  HfTensors tensors;
  Problems problems;
  for (const StoredTensor& ours : index.tensors) {
    if (ours.name.starts_with("optimizer.")) continue;
    std::vector<HfPart> parts = model.parts(ours.name, ours.shape);
    if (parts.empty()) problems.add("{}: the family's table has no rule for it", ours.name);
    for (HfPart& part : parts) {
      HfTensor& tensor = tensors[part.name];
      tensor.name = part.name;
      // The bias that experts are chosen with is fp32 whatever the weights are.
      tensor.dtype = dtype && !ours.name.ends_with(".expert_bias") ? *dtype : ours.dtype;
      tensor.shape = stored_shape(part.shard.local_shape, part.view);
      tensor.pieces.push_back({ours.name, std::move(part)});
    }
  }
  problems.raise("the checkpoint's tensors have no place in the Hugging Face model");
  return tensors;
}

// The checkpoint must hold the model that the configuration describes: its own may be another's.
void check_fits(const CheckpointIndex& index, const FamilyModel& model, const std::string& origin) {
  std::map<std::string_view, const StoredTensor*> stored;
  for (const StoredTensor& tensor : index.tensors) stored[tensor.name] = &tensor;
  Problems problems;
  whole_model(model.model, model.vision ? &*model.vision : nullptr)->visit([&](Parameter& parameter) {
    const Shape& wanted = parameter.shard.global_shape;
    const auto found = stored.find(parameter.name);
    if (found == stored.end())
      problems.add("{}: the checkpoint does not have it", parameter.name);
    else if (!(found->second->shape == wanted))
      problems.add("{}: the checkpoint has {}, the configuration says {}", parameter.name,
                   found->second->shape, wanted);
  });
  problems.raise(fmt::format("the checkpoint is not the model that {} describes", origin));
}

// Tensors in the files of the source where they are the same tensors, else in files of at most `limit`.
TensorFiles plan_files(const HfTensors& tensors, const TensorFiles& source, int64_t limit) {
  TensorFiles kept;
  for (const auto& [name, tensor] : tensors)
    if (auto found = source.find(name); found != source.end()) kept.insert(*found);
  if (kept.size() == tensors.size()) return kept;

  std::vector<std::vector<std::string>> files(1);
  int64_t size = 0;
  for (const auto& [name, tensor] : tensors) {
    if (size > 0 && size + tensor.bytes() > limit) files.emplace_back(), size = 0;
    files.back().push_back(name);
    size += tensor.bytes();
  }
  TensorFiles plan;
  for (size_t i = 0; i < files.size(); ++i)
    for (const std::string& name : files[i])
      plan[name] = files.size() == 1 ? "model.safetensors"
                                     : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, files.size());
  return plan;
}

bool is_plain(const HfTensor& tensor) {
  return std::ranges::all_of(tensor.pieces,
                             [](const HfTensor::Piece& piece) { return piece.part.view == HfView::plain; });
}

void write_tensor(RankContext& ctx, CheckpointReader& reader, const HfTensor& tensor,
                  SafetensorsWriter& writer, StagingBuffer& staging) {
  // In pieces where rows of theirs are what they seem, else whole.
  const bool plain = is_plain(tensor);
  const int64_t piece_bytes = plain ? StagingBuffer::kPieceBytes : std::max<int64_t>(1, tensor.bytes());
  size_t begin = 0;
  for (const Box& box : cut(tensor.shape, piece_bytes / static_cast<int64_t>(size_of(tensor.dtype)))) {
    const Tensor data = staging.tensor(box.extent, tensor.dtype);
    for (const HfTensor::Piece& piece : tensor.pieces) {
      const ShardedTensor target{piece.ours, plain ? shard_within(piece.part.shard, box) : piece.part.shard,
                                 view_of(data, piece.part.view)};
      reader.load(ctx, {&target, 1});
    }
    writer.write(tensor.name, begin, {static_cast<const std::byte*>(data.raw()), data.bytes()});
    begin += data.bytes();
  }
}

void write_weights(CheckpointReader& reader, const HfTensors& tensors, const TensorFiles& plan,
                   const std::string& directory, const ConvertProgress& progress) {
  RankContext ctx;
  int64_t total = 0, done = 0;
  std::map<std::string, std::vector<const HfTensor*>> by_file;
  Json weight_map = Json::object();
  for (const auto& [name, tensor] : tensors) {
    const std::string& file = plan.at(name);
    by_file[file].push_back(&tensor);
    weight_map[name] = file;
    total += tensor.bytes();
  }
  for (const auto& [file, contents] : by_file) {
    std::vector<SafetensorsItem> items;
    for (const HfTensor* tensor : contents) items.push_back({tensor->name, tensor->dtype, tensor->shape});
    SafetensorsWriter writer(directory + "/" + file, std::move(items), {{"format", "pt"}});
    StagingBuffer staging;
    for (const HfTensor* tensor : contents) {
      if (progress) progress(tensor->name, done, total);
      write_tensor(ctx, reader, *tensor, writer, staging);
      done += tensor->bytes();
    }
    writer.commit();
  }
  if (by_file.size() == 1 && by_file.begin()->first == "model.safetensors") return;
  Json index = Json::object();
  index["metadata"]["total_size"] = total;
  index["weight_map"] = weight_map;
  write_file_atomically(directory + "/model.safetensors.index.json", index.dump(2) + "\n");
}

std::string hf_dtype_name(DType dtype) {
  return dtype == DType::F32   ? "float32"
         : dtype == DType::F16 ? "float16"
         : dtype == DType::F64 ? "float64"
                               : "bfloat16";
}

// Configuration and tokenizer, as the source had them, or the model that is followed.
void write_source_files(const CheckpointReader& reader, const HfConfig& config, const std::string& directory,
                        const ExportOptions& options) {
  const std::optional<DType> dtype = options.dtype;
  const bool follows = !options.hf_config.empty();
  const std::vector<std::string> followed =
      follows ? described_by(options.hf_config) : std::vector<std::string>{};
  for (const std::string& name : followed)
    write_file_atomically(directory + "/" + name, read_asset(options.hf_config, name));
  // The tokenizer that a run has kept goes with a configuration that has none.
  const bool has_tokenizer = std::ranges::any_of(followed, is_tokenizer_file);
  for (const std::string& name : assets_of(reader.index()))
    if (name.starts_with(kSourceFolder) && name != kTensorFiles &&
        (!follows || (!has_tokenizer && is_tokenizer_file(name))))
      write_file_atomically(directory + "/" + name.substr(kSourceFolder.size()),
                            read_asset(reader.path(), name));
  const std::string path = directory + "/config.json";
  const bool was_quantized = config.has("quantization_config");  // what is written is plain
  if (fs::exists(path) && !dtype && !was_quantized) return;
  Json json = Json::object();
  for (const auto& [key, value] : config.json().as_object())
    if (key != "quantization_config") json[key] = value;
  if (dtype) json[json.contains("torch_dtype") ? "torch_dtype" : "dtype"] = hf_dtype_name(*dtype);
  write_file_atomically(path, json.dump(2) + "\n");
}

}  // namespace

void export_model(const std::string& checkpoint, const std::string& out, const ExportOptions& options) {
  std::string directory = out;
  while (directory.size() > 1 && directory.ends_with('/')) directory.pop_back();
  if (fs::exists(directory) && !fs::is_empty(directory))
    throw ConfigError(fmt::format("{} is there already and is not empty; name a new directory", directory));
  CheckpointReader reader(checkpoint);
  const std::string kept = reader.path() + "/" + std::string(kSourceFolder);
  if (options.hf_config.empty() && !fs::exists(kept + "config.json"))
    throw ConfigError(
        fmt::format("{}: no config.json of a Hugging Face model came with the checkpoint; name a folder that "
                    "has one with "
                    "the sizes of this model by --hf-config DIR",
                    checkpoint));
  const std::string followed = options.hf_config.empty() ? kept : options.hf_config;
  const HfConfig config = HfConfig::read(followed);
  const TensorFiles source = options.hf_config.empty() ? read_tensor_files(reader.path()) : TensorFiles{};
  const Family& family = find_family(config.architecture());
  HfSource hf{config, {}};
  if (!source.empty()) hf.holds = [&](std::string_view name) { return source.contains(name); };
  const FamilyModel model(family, hf);
  check_fits(reader.index(), model, (fs::path(followed) / "config.json").string());
  const HfTensors tensors = hf_tensors(reader.index(), model, options.dtype);

  const std::string partial = directory + ".partial";
  fs::remove_all(partial);
  fs::create_directories(partial);
  try {
    write_weights(reader, tensors, plan_files(tensors, source, options.shard_bytes), partial,
                  options.progress);
    write_source_files(reader, config, partial, options);
    fs::remove(directory);  // empty, if there at all
    fs::rename(partial, directory);
  } catch (...) {
    fs::remove_all(partial);
    throw;
  }
}

}  // namespace megatron
