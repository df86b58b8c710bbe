#include "megatron/checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <optional>

#include "megatron/base/json.h"
#include "megatron/base/nearest.h"
#include "megatron/base/problems.h"
#include "megatron/checkpoint/host_tensor.h"

namespace megatron {

namespace {

constexpr size_t max_header_bytes = 100'000'000;  // the format's own limit
constexpr size_t prefix_bytes = 8;
constexpr size_t kWriteBytes = size_t{1} << 20;  // at a time
constexpr size_t kLargeFile = size_t{4} << 20;

struct StoredDType {
  std::string_view name;
  size_t size;
  DType dtype;  // as tensor() gives it
  bool widened = false;
};

// In the order in which the reference library lays tensors out.
constexpr StoredDType stored_dtypes[] = {
    {"U64", 8, DType::I64, true},  {"I64", 8, DType::I64},       {"F64", 8, DType::F64},
    {"F32", 4, DType::F32},        {"U32", 4, DType::I64, true}, {"I32", 4, DType::I32},
    {"BF16", 2, DType::BF16},      {"F16", 2, DType::F16},       {"U16", 2, DType::I32, true},
    {"I16", 2, DType::I16},        {"F8_E8M0", 1, DType::U8},    {"F8_E4M3", 1, DType::F8E4M3},
    {"F8_E5M2", 1, DType::F8E5M2}, {"I8", 1, DType::I8},         {"U8", 1, DType::U8},
    {"BOOL", 1, DType::Bool},
};

const StoredDType* find_stored(std::string_view name) {
  for (const StoredDType& stored : stored_dtypes)
    if (stored.name == name) return &stored;
  return nullptr;
}

// The one that is written for a dtype: a name whose meaning is the dtype itself.
size_t layout_rank(DType dtype) {
  for (size_t i = 0; i < std::size(stored_dtypes); ++i) {
    const StoredDType& stored = stored_dtypes[i];
    if (stored.dtype == dtype && !stored.widened && stored.name != "F8_E8M0") return i;
  }
  fail("safetensors: {} has no name", dtype);
}

// The elements in a shape; none where they cannot be counted.
std::optional<size_t> count_elements(const Json& sizes) {
  size_t count = 1;
  for (const Json& size : sizes.as_array())
    if (__builtin_mul_overflow(count, static_cast<size_t>(size.as_int()), &count)) return {};
  return count;
}

bool is_list_of_counts(const Json* json) {
  if (!json || !json->is_array()) return false;
  return std::all_of(json->as_array().begin(), json->as_array().end(),
                     [](const Json& item) { return item.is_int() && item.as_int() >= 0; });
}

// One tensor of the header; `data_bytes` is what the file has after it. begin is relative to the data here.
std::optional<SafetensorsEntry> read_entry(const std::string& name, const Json& json, size_t data_bytes,
                                           Problems& problems) {
  const Json* dtype = json.find("dtype");
  const Json* shape = json.find("shape");
  const Json* offsets = json.find("data_offsets");
  if (!dtype || !dtype->is_string()) return problems.add("{}: it has no dtype", name), std::nullopt;
  const StoredDType* stored = find_stored(dtype->as_string());
  if (!stored) return problems.add("{}: unknown dtype {}", name, dtype->as_string()), std::nullopt;
  if (!is_list_of_counts(shape))
    return problems.add("{}: its shape is not a list of sizes", name), std::nullopt;
  if (shape->size() > Shape::kMaxRank)
    return problems.add("{}: it has {} dimensions, more than {}", name, shape->size(), Shape::kMaxRank),
           std::nullopt;
  if (!is_list_of_counts(offsets) || offsets->size() != 2)
    return problems.add("{}: its data_offsets are not two positions", name), std::nullopt;

  SafetensorsEntry entry{name, dtype->as_string(), stored->dtype, {}, 0, 0};
  for (const Json& size : shape->as_array()) entry.shape.push_back(size.as_int());
  auto begin = static_cast<size_t>((*offsets)[0].as_int()), end = static_cast<size_t>((*offsets)[1].as_int());
  std::optional<size_t> bytes = count_elements(*shape);
  if (bytes && __builtin_mul_overflow(*bytes, stored->size, &*bytes)) bytes.reset();
  if (begin > end) {
    problems.add("{}: its data ends at {}, before its begin at {}", name, end, begin);
  } else if (end > data_bytes) {
    problems.add("{}: its data ends at {}, but the file has {} bytes of data: it was cut short", name, end,
                 data_bytes);
  } else if (!bytes || *bytes != end - begin) {
    problems.add("{}: {} {} does not fill its {} bytes", name, entry.stored, entry.shape, end - begin);
  } else {
    entry.begin = begin;
    entry.bytes = end - begin;
    return entry;
  }
  return {};
}

// The data must be used without overlaps and without holes.
void check_cover(const std::vector<SafetensorsEntry>& entries, size_t data_bytes, Problems& problems) {
  size_t end = 0;
  const std::string* previous = nullptr;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.begin < end) {
      problems.add("{} and {} overlap at byte {} of the data", *previous, entry.name, entry.begin);
    } else if (entry.begin > end) {
      problems.add("bytes {} to {} of the data, before {}, belong to no tensor", end, entry.begin,
                   entry.name);
    }
    if (entry.begin + entry.bytes >= end) previous = &entry.name;
    end = std::max(end, entry.begin + entry.bytes);
  }
  if (end < data_bytes) problems.add("the last {} bytes of the data belong to no tensor", data_bytes - end);
}

template <class From, class To>
void widen(const SafetensorsEntry& entry, const std::byte* source, Tensor& target) {
  To* out = target.data<To>();
  for (int64_t i = 0, n = target.numel(); i < n; ++i) {
    From value;
    std::memcpy(&value, source + i * sizeof(From), sizeof(From));
    require(value <= static_cast<std::make_unsigned_t<To>>(std::numeric_limits<To>::max()),
            "safetensors: element {} of {} ({}) is {}: beyond int64", i, entry.name, entry.stored, value);
    out[i] = static_cast<To>(value);
  }
}

}  // namespace

std::string_view safetensors_name(DType dtype) { return stored_dtypes[layout_rank(dtype)].name; }

SafetensorsFile::SafetensorsFile(const std::string& path) : file_(std::make_shared<MappedFile>(path)) {
  const std::span<const std::byte> bytes = file_->bytes();
  const std::string unsound = path + " is not a sound safetensors file";
  const auto reject = [&](const std::string& why) { throw ConfigError(unsound + ":\n  " + why); };
  if (bytes.size() < prefix_bytes)
    reject(fmt::format("it has {} bytes, too few for a header: it was cut short", bytes.size()));
  uint64_t header_bytes;
  std::memcpy(&header_bytes, bytes.data(), prefix_bytes);
  if (header_bytes > max_header_bytes)
    reject(fmt::format("it announces a header of {} bytes, beyond the limit of {}", header_bytes,
                       max_header_bytes));
  if (header_bytes > bytes.size() - prefix_bytes)
    reject(fmt::format("it announces a header of {} bytes, but has {}: it was cut short", header_bytes,
                       bytes.size() - prefix_bytes));
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + prefix_bytes, header_bytes);
  if (!text.starts_with('{')) reject("its header does not begin with '{'");

  Json header;
  try {
    header = Json::parse(text, "the header");
  } catch (const Error& error) {
    reject(error.what());
  }
  const size_t data_begin = prefix_bytes + header_bytes, data_bytes = bytes.size() - data_begin;
  Problems problems;
  for (const auto& [name, json] : header.as_object()) {
    if (name != "__metadata__") {
      if (auto entry = read_entry(name, json, data_bytes, problems)) entries_.push_back(std::move(*entry));
    } else if (!json.is_object()) {
      problems.add("__metadata__ is {}, not an object", json.type_name());
    } else {
      for (const auto& [key, value] : json.as_object()) {
        if (value.is_string()) {
          metadata_[key] = value.as_string();
        } else {
          problems.add("__metadata__: {} is {}, not a string", key, value.type_name());
        }
      }
    }
  }
  std::stable_sort(entries_.begin(), entries_.end(), [](const auto& a, const auto& b) {
    return std::pair(a.begin, a.begin + a.bytes) < std::pair(b.begin, b.begin + b.bytes);
  });
  if (problems.empty()) check_cover(entries_, data_bytes, problems);
  problems.raise(unsound);
  for (SafetensorsEntry& entry : entries_) entry.begin += data_begin;
  for (size_t i = 0; i < entries_.size(); ++i) index_.emplace(entries_[i].name, i);
}

std::vector<std::string> SafetensorsFile::names() const {
  std::vector<std::string> names;
  for (const SafetensorsEntry& entry : entries_) names.push_back(entry.name);
  return names;
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
  auto found = index_.find(name);
  return found == index_.end() ? nullptr : &entries_[found->second];
}

const SafetensorsEntry& SafetensorsFile::at(std::string_view name) const {
  const SafetensorsEntry* entry = find(name);
  if (entry) return *entry;
  std::string advice = did_you_mean(nearest(name, names()));
  throw ConfigError(
      fmt::format("{} has no tensor '{}'{}{}", path(), name, advice.empty() ? "" : ": ", advice));
}

Tensor SafetensorsFile::tensor(std::string_view name) const {
  const SafetensorsEntry& entry = at(name);
  const std::byte* data = bytes(entry).data();
  const StoredDType& stored = *find_stored(entry.stored);
  const bool aligned = reinterpret_cast<uintptr_t>(data) % stored.size == 0;
  if (!stored.widened && aligned)
    return Tensor::wrap(const_cast<std::byte*>(data), entry.shape, entry.dtype, kCpu, file_);
  Tensor tensor = host_tensor(entry.shape, entry.dtype);
  if (!stored.widened) {
    std::memcpy(tensor.raw(), data, entry.bytes);
  } else if (entry.stored == "U16") {
    widen<uint16_t, int32_t>(entry, data, tensor);
  } else if (entry.stored == "U32") {
    widen<uint32_t, int64_t>(entry, data, tensor);
  } else {
    widen<uint64_t, int64_t>(entry, data, tensor);
  }
  return tensor;
}

std::span<const std::byte> SafetensorsFile::header() const {
  uint64_t header_bytes;
  std::memcpy(&header_bytes, file_->bytes().data(), prefix_bytes);
  return file_->bytes().first(prefix_bytes + header_bytes);
}

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::vector<SafetensorsItem> items,
                                     const SafetensorsMetadata& metadata)
    : file_(path) {
  std::sort(items.begin(), items.end(), [](const SafetensorsItem& a, const SafetensorsItem& b) {
    return std::pair(layout_rank(a.dtype), std::string_view(a.name)) <
           std::pair(layout_rank(b.dtype), std::string_view(b.name));
  });
  Json::Object header;
  if (!metadata.empty()) {
    Json::Object list;
    for (const auto& [key, value] : metadata) list.emplace_back(key, value);
    header.emplace_back("__metadata__", std::move(list));
  }
  size_t end = 0;
  for (SafetensorsItem& item : items) {
    require(item.name != "__metadata__", "{}: a tensor cannot have the name __metadata__", path);
    require(index_.emplace(item.name, slots_.size()).second, "{}: two tensors have the name '{}'", path,
            item.name);
    size_t bytes = static_cast<size_t>(item.shape.numel()) * size_of(item.dtype);
    Json::Array shape(item.shape.begin(), item.shape.end());
    Json::Object entry;
    entry.emplace_back("dtype", safetensors_name(item.dtype));
    entry.emplace_back("shape", std::move(shape));
    entry.emplace_back("data_offsets", Json::Array{end, end + bytes});
    header.emplace_back(item.name, std::move(entry));
    slots_.push_back({std::move(item), end, bytes});
    end += bytes;
  }
  std::string text = Json(std::move(header)).dump();
  // Data begins aligned to 8, that of a large file to blocks.
  is_large_ = end >= kLargeFile;
  const size_t unit = is_large_ ? AtomicFile::kBlockAlignment : 8;
  text.resize((prefix_bytes + text.size() + unit - 1) / unit * unit - prefix_bytes, ' ');
  require(text.size() <= max_header_bytes, "{}: its header would have {} bytes, beyond the limit of {}", path,
          text.size(), max_header_bytes);
  const uint64_t header_bytes = text.size();
  for (Slot& slot : slots_) slot.begin += prefix_bytes + header_bytes;
  bytes_ = prefix_bytes + text.size() + end;
  Checksum header_sum;
  header_sum.update(std::as_bytes(std::span(&header_bytes, 1)));
  header_sum.update(std::as_bytes(std::span(text)));
  header_checksum_ = header_sum.hex();
  file_.reserve(bytes_);
  file_.write_at(0, std::as_bytes(std::span(&header_bytes, 1)));
  file_.write_at(prefix_bytes, std::as_bytes(std::span(text)));
}

size_t SafetensorsWriter::item(std::string_view name) const {
  const auto found = index_.find(name);
  require(found != index_.end(), "{}: the tensor '{}' was not announced", path(), name);
  return found->second;
}

void SafetensorsWriter::write(std::string_view name, const Tensor& tensor) {
  const SafetensorsItem& announced = slots_[item(name)].item;
  require(tensor.shape() == announced.shape && tensor.dtype() == announced.dtype,
          "{}: '{}' was announced as {}{}, but it is {}", path(), name, announced.dtype, announced.shape,
          tensor);
  require(tensor.device().is_cpu() && tensor.is_contiguous(),
          "{}: '{}' is {}: only a contiguous tensor on the CPU can be written", path(), name, tensor);
  write(name, 0, {static_cast<const std::byte*>(tensor.raw()), tensor.bytes()});
}

void SafetensorsWriter::write(std::string_view name, size_t begin, std::span<const std::byte> bytes) {
  const size_t target = item(name);
  // Summed and written while it is in the core's cache.
  for (size_t done = 0; done < bytes.size(); done += kWriteBytes) {
    const auto part = bytes.subspan(done, std::min(kWriteBytes, bytes.size() - done));
    file_.write_at(take(target, begin + done, part), part);
  }
}

size_t SafetensorsWriter::take(size_t item, size_t begin, std::span<const std::byte> bytes) {
  Slot& target = slots_[item];
  require(begin <= target.bytes && bytes.size() <= target.bytes - begin,
          "{}: bytes {} to {} of '{}' are beyond its {}", path(), begin, begin + bytes.size(),
          target.item.name, target.bytes);
  if (target.summed == begin) {
    target.checksum.update(bytes);
    target.summed += bytes.size();
  }
  target.taken += bytes.size();
  return target.begin + begin;
}

std::string SafetensorsWriter::checksum(std::string_view name) const {
  const Slot& slot = slots_[item(name)];
  require(slot.summed == slot.bytes, "{}: the bytes of '{}' did not come in their order", path(), name);
  return slot.checksum.hex();
}

void SafetensorsWriter::commit() {
  for (const Slot& slot : slots_)
    require(slot.taken == slot.bytes, "{}: {} bytes of '{}' were written, it has {}", path(), slot.taken,
            slot.item.name, slot.bytes);
  file_.commit();
}

void write_safetensors(const std::string& path, const std::vector<std::pair<std::string, Tensor>>& tensors,
                       const SafetensorsMetadata& metadata) {
  std::vector<SafetensorsItem> items;
  for (const auto& [name, tensor] : tensors) items.push_back({name, tensor.dtype(), tensor.shape()});
  SafetensorsWriter writer(path, std::move(items), metadata);
  for (const auto& [name, tensor] : tensors) writer.write(name, tensor);
  writer.commit();
}

}  // namespace megatron
