#include "megatron/checkpoint/torch/torch_archive.h"

#include <algorithm>
#include <cstring>

#include "megatron/base/error.h"
#include "megatron/checkpoint/host_tensor.h"

namespace megatron {
namespace {

struct TorchDType {
  std::string_view name, storage;
  DType dtype;
};

constexpr TorchDType kDTypes[] = {
    {"float64", "DoubleStorage", DType::F64},     {"float32", "FloatStorage", DType::F32},
    {"bfloat16", "BFloat16Storage", DType::BF16}, {"float16", "HalfStorage", DType::F16},
    {"float8_e4m3fn", "", DType::F8E4M3},         {"float8_e5m2", "", DType::F8E5M2},
    {"int64", "LongStorage", DType::I64},         {"int32", "IntStorage", DType::I32},
    {"int16", "ShortStorage", DType::I16},        {"int8", "CharStorage", DType::I8},
    {"uint8", "ByteStorage", DType::U8},          {"bool", "BoolStorage", DType::Bool},
};

const ZipArchive& checked(const ZipArchive& zip, const std::string& origin) {
  const auto* order = zip.find("byteorder");
  if (order && std::string_view(reinterpret_cast<const char*>(order->data()), order->size()) != "little")
    throw ConfigError(
        fmt::format("{}: its numbers are big-endian; save it on a little-endian machine", origin));
  return zip;
}

std::span<const std::byte> archive_bytes(const FileSlice& slice, const std::string& origin) {
  const auto bytes = slice.bytes();
  if (bytes.size() >= 2 && bytes[0] == std::byte{0x80} && bytes[1] == std::byte{2})
    throw ConfigError(fmt::format(
        "{}: PyTorch's format before version 1.6; read it with torch.load and write it with torch.save again",
        origin));
  return bytes;
}

}  // namespace

FileSlice FileSlice::whole(const std::string& path) {
  auto file = std::make_shared<const MappedFile>(path);
  const size_t size = file->bytes().size();
  return {std::move(file), 0, size};
}

DType torch_dtype(std::string_view name, const std::string& origin) {
  const std::string_view bare = name.starts_with("torch.") ? name.substr(6) : name;
  for (const TorchDType& row : kDTypes)
    if (bare == row.name || (!row.storage.empty() && bare == row.storage)) return row.dtype;
  throw ConfigError(fmt::format("{}: dtype {} is not one that tensors have here", origin, name));
}

std::string_view torch_name(DType dtype) {
  return std::ranges::find(kDTypes, dtype, &TorchDType::dtype)->name;
}

Shape torch_shape(const PickleValue& value, const std::string& origin) {
  if (!value.is(PickleKind::tuple) && !value.is(PickleKind::list))
    throw ConfigError(fmt::format("{}: {} in place of sizes", origin, name_of(value.kind)));
  if (value.items.size() > Shape::kMaxRank)
    throw ConfigError(
        fmt::format("{}: {} dimensions, at most {}", origin, value.items.size(), int{Shape::kMaxRank}));
  Shape shape;
  int64_t elements = 1;
  for (const PickleValue* item : value.items) {
    if (!item->is(PickleKind::integer) || item->integer < 0 ||
        __builtin_mul_overflow(elements, std::max<int64_t>(item->integer, 1), &elements) ||
        elements > int64_t{1} << 56)
      throw ConfigError(fmt::format("{}: sizes that no tensor has", origin));
    shape.push_back(item->integer);
  }
  return shape;
}

TorchArchive::TorchArchive(FileSlice slice, const std::string& origin)
    : slice_(std::move(slice)),
      origin_(origin),
      zip_(archive_bytes(slice_, origin), origin),
      document_(checked(zip_, origin_).at("data.pkl"), origin_) {}

Tensor TorchArchive::tensor(const PickleValue& value, std::string_view name) const {
  const std::string where = fmt::format("{}: {}", origin_, name);
  if (!value.is(PickleKind::tensor))
    throw ConfigError(fmt::format("{}: {}, not a tensor", where, name_of(value.kind)));
  const PickleValue& storage = *value.items[0];
  const DType dtype =
      torch_dtype(value.items.size() > 4 ? value.items[4]->text : storage.items[0]->text, where);
  const Shape shape = torch_shape(*value.items[2], where), strides = torch_shape(*value.items[3], where);
  const auto bytes = zip_.at(fmt::format("data/{}", storage.items[1]->text.substr(0, 64)));
  const int64_t offset = value.items[1]->integer;
  const auto width = static_cast<int64_t>(size_of(dtype));
  const auto available = static_cast<int64_t>(bytes.size()) / width;
  // The last element of each dimension, against what the storage holds.
  int64_t last = offset;
  bool fits = shape.rank() == strides.rank() && offset >= 0 && offset <= available;
  for (int d = 0; fits && d < shape.rank(); ++d) {
    int64_t reach = 0;
    fits = !__builtin_mul_overflow(std::max<int64_t>(shape[d] - 1, 0), strides[d], &reach) &&
           !__builtin_add_overflow(last, reach, &last);
  }
  if (!fits || shape.numel() > available || (shape.numel() > 0 && last >= available))
    throw ConfigError(fmt::format("{}: a tensor of {}{} with strides {} at {} in a storage of {} elements",
                                  where, dtype, shape, strides, offset, available));
  const std::byte* data = bytes.data();
  const bool aligned = reinterpret_cast<uintptr_t>(data) % static_cast<size_t>(width) == 0;
  Tensor flat;
  if (aligned) {
    flat = Tensor::wrap(const_cast<std::byte*>(data), {available}, dtype, kCpu,
                        std::const_pointer_cast<MappedFile>(slice_.file));
  } else {
    flat = host_tensor({available}, dtype);
    std::memcpy(flat.raw(), data, static_cast<size_t>(available * width));
  }
  return Tensor(flat.storage(), offset, shape, strides, dtype);
}

}  // namespace megatron
