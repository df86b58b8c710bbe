#include "megatron/checkpoint/index.h"

#include <algorithm>

namespace megatron {

namespace {

constexpr std::string_view format_name = "megatron-checkpoint";
constexpr int64_t format_version = 2, oldest_version = 1;  // 1: checksums of whole files alone

// Pieces of a real layout leave a few; an index that was made to keep a reader busy leaves ever more.
constexpr size_t max_open_boxes = 4096;

Json to_json(const Shape& shape) { return Json(Json::Array(shape.begin(), shape.end())); }

// Sizes whose product, too, can be counted.
Shape read_shape(const Json& json) {
  Shape shape;
  int64_t product = 1;
  for (const Json& item : json.as_array()) {
    const int64_t size = item.as_int();
    bool sane = size >= 0 && size < int64_t{1} << 48;
    sane = sane && !__builtin_mul_overflow(product, std::max<int64_t>(size, 1), &product);
    require(sane, "{} is an absurd shape", json.dump());
    shape.push_back(size);
  }
  return shape;
}

Json to_json(const TrainingState& state) {
  Json json = Json::object();
  json["iteration"] = state.iteration;
  json["consumed_samples"] = state.consumed_samples;
  json["optimizer_steps"] = state.optimizer_steps;
  json["consumed_valid_samples"] = state.consumed_valid_samples;
  if (state.skipped_samples > 0) json["skipped_samples"] = state.skipped_samples;
  if (state.without_update > 0) json["samples_without_update"] = state.without_update;
  json["seed"] = state.seed;
  json["config"] = state.config;
  if (!state.schedule.is_null()) json["schedule"] = state.schedule;
  if (!state.rerun.is_null()) json["rerun"] = state.rerun;
  if (!state.user.is_null()) json["user"] = state.user;
  json["extra"] = state.extra;
  if (state.loss_scale) {
    Json scale = Json::object();
    scale["scale"] = state.loss_scale->scale;
    scale["clean_steps"] = state.loss_scale->clean_steps;
    scale["tolerance"] = state.loss_scale->tolerance;
    json["loss_scale"] = scale;
  }
  if (state.base) {
    Json base = Json::object();
    base["iteration"] = state.base->iteration;
    base["xxh64"] = state.base->checksum;
    json["base"] = base;
  }
  return json;
}

TrainingState read_state(const Json& json) {
  TrainingState state;
  state.iteration = json.at("iteration").as_int();
  state.consumed_samples = json.at("consumed_samples").as_int();
  const Json* steps = json.find("optimizer_steps");
  state.optimizer_steps = steps ? steps->as_int() : state.iteration;
  state.consumed_valid_samples = json.at("consumed_valid_samples").as_int();
  if (const Json* skipped = json.find("skipped_samples")) state.skipped_samples = skipped->as_int();
  if (const Json* samples = json.find("samples_without_update")) state.without_update = samples->as_int();
  state.seed = static_cast<uint64_t>(json.at("seed").as_int());
  if (const Json* schedule = json.find("schedule")) state.schedule = *schedule;
  if (const Json* rerun = json.find("rerun")) state.rerun = *rerun;
  if (const Json* user = json.find("user")) state.user = *user;
  state.config = json.at("config");
  state.extra = json.at("extra");
  if (const Json* scale = json.find("loss_scale"))
    state.loss_scale = {scale->at("scale").as_double(), scale->at("clean_steps").as_int(),
                        scale->at("tolerance").as_int()};
  if (const Json* base = json.find("base"))
    state.base = {base->at("iteration").as_int(), base->at("xxh64").as_string()};
  return state;
}

std::string read_checksum(const Json& json, std::string_view key = "xxh64") {
  const Json* checksum = json.find(key);
  return checksum ? checksum->as_string() : "";
}

StoredTensor read_tensor(const Json& json) {
  StoredTensor tensor{json.at("name").as_string(),
                      dtype_from_name(json.at("dtype").as_string()),
                      read_shape(json.at("shape")),
                      {}};
  for (const Json& item : json.at("pieces").as_array()) {
    StoredChunk piece{static_cast<int>(item.at("file").as_int()),
                      {read_shape(item.at("offset")), read_shape(item.at("extent"))},
                      read_checksum(item)};
    require(piece.box.offset.rank() == tensor.shape.rank() && piece.box.extent.rank() == tensor.shape.rank(),
            "{}: a piece has another number of dimensions than its shape {}", tensor.name, tensor.shape);
    tensor.pieces.push_back(std::move(piece));
  }
  return tensor;
}

// A name from a file may not lead out of the checkpoint's own directory.
bool is_plain(const std::string& name) {
  return !name.empty() && name.front() != '/' && name.find("..") == std::string::npos &&
         name.find('\0') == std::string::npos;
}

}  // namespace

std::string piece_key(const StoredTensor& tensor, const Box& box) {
  return box.extent == tensor.shape ? tensor.name : tensor.name + box.str();
}

void check_pieces(const StoredTensor& tensor, Problems& problems, IndexScope scope) {
  const Box whole = whole_box(tensor.shape);
  std::vector<Box> open = {whole};
  if (whole.volume() == 0) open.clear();
  for (const StoredChunk& piece : tensor.pieces) {
    if (!whole.contains(piece.box)) {
      problems.add("{}: the piece {} is outside its shape {}", tensor.name, piece.box, tensor.shape);
      continue;
    }
    int64_t found = 0;
    std::vector<Box> rest;
    for (size_t i = 0; i < open.size();) {
      const std::optional<Box> both = intersect(open[i], piece.box);
      if (!both) {
        ++i;
        continue;
      }
      found += both->volume();
      std::vector<Box> left = subtract(open[i], piece.box);
      rest.insert(rest.end(), left.begin(), left.end());
      open[i] = open.back();
      open.pop_back();
    }
    if (found != piece.box.volume())
      problems.add("{}: the piece {} overlaps another one", tensor.name, piece.box);
    open.insert(open.end(), rest.begin(), rest.end());
    if (open.size() > max_open_boxes)
      return problems.add("{}: its pieces are scattered beyond reason", tensor.name);
  }
  if (scope == IndexScope::share) return;
  std::ranges::sort(open, std::ranges::lexicographical_compare, &Box::offset);
  for (const Box& part : open) problems.add("{}: no piece holds {}", tensor.name, part);
}

Json CheckpointIndex::to_json() const {
  Json json = Json::object();
  json["format"] = format_name;
  json["version"] = format_version;
  json["state"] = megatron::to_json(state);
  json["files"] = Json::array();
  for (const StoredFile& file : files) {
    Json item = Json::object();
    item["name"] = file.name;
    item["bytes"] = file.bytes;
    if (!file.checksum.empty()) item["xxh64"] = file.checksum;
    if (!file.header_checksum.empty()) item["header_xxh64"] = file.header_checksum;
    json["files"].push_back(std::move(item));
  }
  Json::Array list;
  for (const StoredTensor& tensor : tensors) {
    Json item = Json::object();
    item["name"] = tensor.name;
    item["dtype"] = name_of(tensor.dtype);
    item["shape"] = megatron::to_json(tensor.shape);
    Json::Array pieces;
    for (const StoredChunk& piece : tensor.pieces) {
      Json place = Json::object();
      place["file"] = piece.file;
      place["offset"] = megatron::to_json(piece.box.offset);
      place["extent"] = megatron::to_json(piece.box.extent);
      if (!piece.checksum.empty()) place["xxh64"] = piece.checksum;
      pieces.push_back(std::move(place));
    }
    item["pieces"] = std::move(pieces);
    list.push_back(std::move(item));
  }
  json["tensors"] = std::move(list);
  return json;
}

CheckpointIndex CheckpointIndex::from_json(const Json& json, const std::string& origin, IndexScope scope) {
  CheckpointIndex index;
  Problems problems;
  try {
    require(json.at("format").as_string() == format_name, "its format is '{}'",
            json.at("format").as_string());
    const int64_t version = json.at("version").as_int();
    require(version >= oldest_version && version <= format_version,
            "its version is {}; this program reads {} to {}", version, oldest_version, format_version);
    index.state = read_state(json.at("state"));
    for (const Json& item : json.at("files").as_array())
      index.files.push_back({item.at("name").as_string(), item.at("bytes").as_int(), read_checksum(item),
                             read_checksum(item, "header_xxh64")});
    for (const Json& item : json.at("tensors").as_array()) index.tensors.push_back(read_tensor(item));
  } catch (const Error& error) {
    throw ConfigError(fmt::format("{} is not the index of a checkpoint: {}", origin, error.what()));
  }
  for (const StoredFile& file : index.files)
    if (!is_plain(file.name)) problems.add("the file name '{}' leads elsewhere", file.name);
  for (size_t i = 0; i < index.tensors.size(); ++i) {
    const StoredTensor& tensor = index.tensors[i];
    if (i > 0 && index.tensors[i - 1].name >= tensor.name)
      problems.add("{}: it stands twice or out of order", tensor.name);
    for (const StoredChunk& piece : tensor.pieces)
      if (piece.file < 0 || piece.file >= static_cast<int>(index.files.size()))
        problems.add("{}: there is no file {}", tensor.name, piece.file);
    check_pieces(tensor, problems, scope);
  }
  problems.raise(origin + " does not fit together");
  return index;
}

const StoredTensor* CheckpointIndex::find(std::string_view name) const {
  auto found = std::lower_bound(
      tensors.begin(), tensors.end(), name,
      [](const StoredTensor& tensor, std::string_view wanted) { return tensor.name < wanted; });
  return found != tensors.end() && found->name == name ? &*found : nullptr;
}

}  // namespace megatron
