#include "megatron/datasets/images/image_rows.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "megatron/base/refuse.h"
#include "megatron/checkpoint/host_tensor.h"
#include "megatron/datasets/sft/sft_rows.h"

namespace megatron {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kImageEndings[] = {"png", "jpg", "jpeg", "ppm", "pgm"};

// The paths of a row's images, in the order of its text.
std::vector<std::string> image_paths(const Json& row, const std::string& origin) {
  std::vector<std::string> paths;
  const auto add = [&](const Json& value) {
    const Json* path = value.is_object() ? value.find("path") : &value;
    require_input(path && path->is_string(), "{}: an image is {}, expected the path of a file", origin,
                  value.type_name());
    const std::string& text = path->as_string();
    paths.push_back(text.starts_with("file://") ? text.substr(7) : text);
  };
  for (const char* key : {"images", "image"})
    if (const Json* value = row.is_object() ? row.find(key) : nullptr;
        value && !value->is_null() && paths.empty()) {
      if (value->is_array())
        for (const Json& each : value->as_array()) add(each);
      else
        add(*value);
    }
  const Json* messages = row.is_object() ? row.find("messages") : nullptr;
  if (!paths.empty() || !messages || !messages->is_array()) return paths;
  for (const Json& message : messages->as_array()) {
    const Json* content = message.is_object() ? message.find("content") : nullptr;
    if (!content || !content->is_array()) continue;
    for (const Json& part : content->as_array())
      if (const Json* path = part.is_object() ? part.find("image") : nullptr) add(*path);
  }
  return paths;
}

class JsonImages final : public ImageStore {
 public:
  explicit JsonImages(const std::string& path) : rows_(path), folder_(fs::path(path).parent_path()) {}
  int64_t size() const override { return rows_.size(); }
  std::string origin(int64_t row) const override { return rows_.origin(row); }
  Json row(int64_t row) const override { return rows_.row(row); }
  std::vector<Image> images(int64_t row, const Json& json) const override {
    std::vector<Image> images;
    for (const std::string& path : image_paths(json, origin(row)))
      images.push_back(read_image((folder_ / path).string()));  // a whole path stays as it is
    return images;
  }

 private:
  JsonRows rows_;
  fs::path folder_;
};

class TarImages final : public ImageStore {
 public:
  explicit TarImages(const std::vector<std::string>& paths) {
    for (const std::string& path : paths) {
      files_.emplace_back(path);
      std::map<std::string, size_t> places;
      for (const TarFile::Member& member : files_.back().members()) {
        const size_t slash = member.name.rfind('/') + 1, dot = member.name.find('.', slash);
        if (dot == std::string::npos || dot == slash) continue;  // no ending, or a hidden file
        const auto [place, added] = places.emplace(member.name.substr(0, dot), rows_.size());
        if (added) rows_.push_back({files_.size() - 1, member.name.substr(0, dot), nullptr, {}});
        place_member(rows_[place->second], member, member.name.substr(member.name.rfind('.') + 1));
      }
    }
    std::erase_if(rows_, [](const Row& row) { return row.text == nullptr; });
  }
  int64_t size() const override { return static_cast<int64_t>(rows_.size()); }
  std::string origin(int64_t row) const override {
    const Row& own = at(row);
    return files_[own.file].path() + ": " + own.key;
  }
  Json row(int64_t row) const override {
    const Row& own = at(row);
    const auto bytes = files_[own.file].bytes(*own.text);
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (!own.text->name.ends_with(".txt")) return Json::parse(text, origin(row));
    Json caption = Json::object();
    caption["prompt"] = "<image>";
    caption["completion"] = std::string(text);
    return caption;
  }
  std::vector<Image> images(int64_t row, const Json&) const override {
    const Row& own = at(row);
    std::vector<Image> images;
    for (const TarFile::Member* member : own.images)
      images.push_back(
          decode_image(files_[own.file].bytes(*member), files_[own.file].path() + ": " + member->name));
    return images;
  }

 private:
  struct Row {
    size_t file;
    std::string key;
    const TarFile::Member* text;
    std::vector<const TarFile::Member*> images;
  };

  static void place_member(Row& row, const TarFile::Member& member, std::string ending) {
    std::transform(ending.begin(), ending.end(), ending.begin(),
                   [](unsigned char c) { return std::tolower(c); });
    if (ending == "json" || (ending == "txt" && !row.text)) row.text = &member;
    if (std::find(std::begin(kImageEndings), std::end(kImageEndings), ending) != std::end(kImageEndings))
      row.images.push_back(&member);
  }
  const Row& at(int64_t row) const { return rows_.at(static_cast<size_t>(row)); }

  std::vector<TarFile> files_;
  std::vector<Row> rows_;
};

std::vector<std::string> tars_in(const std::string& path) {
  std::error_code absent;
  if (!fs::is_directory(path, absent)) return {path};
  std::vector<std::string> found;
  for (const auto& entry : fs::recursive_directory_iterator(path))
    if (entry.is_regular_file() && entry.path().extension() == ".tar") found.push_back(entry.path().string());
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

bool names_images(const std::string& path) {
  std::error_code absent;
  return path.ends_with(".jsonl") || path.ends_with(".json") || path.ends_with(".tar") ||
         (fs::is_directory(path, absent) && !tars_in(path).empty());
}

std::shared_ptr<const ImageStore> open_images(const std::string& path) {
  std::error_code absent;
  if (path.ends_with(".tar") || fs::is_directory(path, absent)) {
    const std::vector<std::string> files = tars_in(path);
    require_input(!files.empty(), "{}: the folder has no .tar files", path);
    return std::make_shared<const TarImages>(files);
  }
  return std::make_shared<const JsonImages>(path);
}

SampleRows encoded_rows(std::shared_ptr<const ImageStore> store,
                        std::shared_ptr<const ImageTextEncoder> encode) {
  const int64_t count = store->size();
  return {count, [store = std::move(store), encode = std::move(encode)](int64_t row) {
            const Json json = store->row(row);
            return (*encode)(json, store->images(row, json), store->origin(row));
          }};
}

ImageRows::ImageRows(SampleRows rows, const std::string& path, std::array<double, 2> ends, int64_t max_rows,
                     std::optional<int64_t> num_samples)
    : rows_(std::move(rows)), range_(split_range(ends, rows_.count)) {
  if (max_rows > 0) range_.end = std::min(range_.end, range_.begin + max_rows);
  size_ = num_samples.value_or(range_.size());
  require_input(size_ == 0 || range_.size() > 0,
                "{}: --split leaves one of its parts, of which samples are asked, without rows; give it a "
                "larger share, as in --split 90,10,0, or --eval-iters 0 with --split 1,0,0",
                path);
  description_["class"] = "ImageRows";
  description_["dataset_path"] = path;
  description_["rows"] = Json::Array{range_.begin, range_.end};
}

std::vector<float> answer_weights(std::span<const int64_t> labels) {
  std::vector<float> weights(labels.size(), 0.0F);
  for (size_t begin = 0; begin < labels.size(); ++begin) {
    size_t end = begin;
    while (end < labels.size() && labels[end] >= 0) ++end;
    if (end == begin) continue;
    const auto weight = static_cast<float>(1 / std::sqrt(static_cast<double>(end - begin)));
    for (; begin < end; ++begin) weights[begin] = weight;
  }
  return weights;
}

void put_images(ImagePatches images, Batch& batch) {
  if (images.grids.empty()) return;
  const auto patches = static_cast<int64_t>(images.pixels.size()) / images.features;
  auto pixels = std::make_shared<std::vector<float>>(std::move(images.pixels));
  batch.extra["pixels"] = Tensor::wrap(pixels->data(), {patches, images.features}, DType::F32, kCpu, pixels);
  auto grids = std::make_shared<std::vector<int64_t>>();
  for (const PatchGrid& grid : images.grids)
    grids->insert(grids->end(), {grid.frames, grid.rows, grid.columns});
  batch.extra["image_grids"] =
      Tensor::wrap(grids->data(), {static_cast<int64_t>(images.grids.size()), 3}, DType::I64, kCpu, grids);
}

namespace {

class ImageSource final : public BatchSource {
 public:
  ImageSource(std::function<ImageSample(int64_t)> sample, SampleOrder order, int64_t length, int64_t pad,
              bool weighs_answers)
      : sample_(std::move(sample)),
        order_(std::move(order)),
        length_(length),
        pad_(pad),
        weighs_answers_(weighs_answers) {}
  int64_t length() const override { return length_; }
  int64_t samples() const override { return order_.samples(); }

  std::vector<Batch> step(const StepRequest& request) const override {
    return fill_batches(order_, request, [&](Batch& batch, const std::vector<int64_t>& numbers) {
      ImagePatches images;
      for (int64_t number : numbers) {
        ImageSample sample = sample_(number);
        const GptSample row = unpacked_sample(sample.tokens, length_, pad_);
        batch.ids.insert(batch.ids.end(), row.tokens.begin(), row.tokens.end());
        batch.labels.insert(batch.labels.end(), row.labels.begin(), row.labels.end());
        images.add(sample.images);
        if (!weighs_answers_) continue;
        const std::vector<float> weights = answer_weights(row.labels);
        batch.weights.insert(batch.weights.end(), weights.begin(), weights.end());
      }
      put_images(std::move(images), batch);
    });
  }

 private:
  std::function<ImageSample(int64_t)> sample_;
  SampleOrder order_;
  int64_t length_, pad_;
  bool weighs_answers_;
};

}  // namespace

std::shared_ptr<const BatchSource> image_source(std::function<ImageSample(int64_t)> sample, SampleOrder order,
                                                int64_t length, int64_t pad, bool weighs_answers) {
  return std::make_shared<const ImageSource>(std::move(sample), std::move(order), length, pad,
                                             weighs_answers);
}

}  // namespace megatron
