#include "megatron/checkpoint/torch/dist_writer.h"

#include "megatron/base/error.h"
#include "megatron/checkpoint/host_tensor.h"
#include "megatron/checkpoint/torch/pickle_writer.h"
#include "megatron/checkpoint/torch/torch_archive.h"

namespace megatron {
namespace {

constexpr std::string_view kMetadataModule = "torch.distributed.checkpoint.metadata";

std::string storage_type(DType dtype) {
  switch (dtype) {
    case DType::F64:
      return "DoubleStorage";
    case DType::F32:
      return "FloatStorage";
    case DType::BF16:
      return "BFloat16Storage";
    case DType::F16:
      return "HalfStorage";
    case DType::I64:
      return "LongStorage";
    case DType::I32:
      return "IntStorage";
    case DType::I16:
      return "ShortStorage";
    case DType::I8:
      return "CharStorage";
    case DType::U8:
      return "ByteStorage";
    case DType::Bool:
      return "BoolStorage";
    default:
      fail("torch archive: {} has no storage type; convert the tensor to bf16", dtype);
  }
}

// A contiguous tensor whose data are the entry data/0.
std::string tensor_pickle(DType dtype, const Shape& shape) {
  PickleWriter pickle;
  pickle.global("torch._utils", "_rebuild_tensor_v2");
  pickle.begin_tuple();
  pickle.begin_tuple();
  pickle.text("storage");
  pickle.global("torch", storage_type(dtype));
  pickle.text("0");
  pickle.text("cpu");
  pickle.integer(shape.numel());
  pickle.end_tuple();
  pickle.persistent();
  pickle.integer(0);
  for (const Shape& numbers : {shape, shape.row_major_strides()}) {
    pickle.begin_tuple();
    for (int64_t number : numbers) pickle.integer(number);
    pickle.end_tuple();
  }
  pickle.boolean(false);
  pickle.global("collections", "OrderedDict");
  pickle.begin_tuple();
  pickle.end_tuple();
  pickle.call();
  pickle.end_tuple();
  pickle.call();
  return pickle.finish();
}

void begin_archive(ZipWriter& zip, const std::string& pickle) {
  zip.add("archive/data.pkl", pickle);
  zip.add("archive/byteorder", "little");
}

size_t end_archive(ZipWriter& zip) {
  zip.add("archive/version", "3\n");
  return zip.finish();
}

void write_properties(PickleWriter& pickle, DType dtype) {
  pickle.object(kMetadataModule, "TensorProperties");
  pickle.begin_tuple();
  pickle.global("torch", torch_name(dtype));
  pickle.global("torch.serialization", "_get_layout");
  pickle.begin_tuple();
  pickle.text("torch.strided");
  pickle.end_tuple();
  pickle.call();
  pickle.boolean(false);  // requires_grad
  pickle.global(kMetadataModule, "_MEM_FORMAT_ENCODING");
  pickle.begin_tuple();
  pickle.integer(0);  // contiguous
  pickle.end_tuple();
  pickle.call();
  pickle.boolean(false);  // pin_memory
  pickle.end_tuple();
  pickle.set_state();
}

void write_tensor(PickleWriter& pickle, const DistTensor& tensor) {
  pickle.object(kMetadataModule, "TensorStorageMetadata");
  pickle.begin_dict();
  pickle.text("properties");
  write_properties(pickle, tensor.dtype);
  pickle.text("size");
  pickle.sizes(tensor.shape);
  pickle.text("chunks");
  pickle.begin_list();
  for (const DistChunk& chunk : tensor.chunks) {
    pickle.object(kMetadataModule, "ChunkStorageMetadata");
    pickle.begin_dict();
    pickle.text("offsets");
    pickle.sizes(chunk.box.offset);
    pickle.text("sizes");
    pickle.sizes(chunk.box.extent);
    pickle.end_dict();
    pickle.set_state();
  }
  pickle.end_list();
  pickle.end_dict();
  pickle.set_state();
}

// An entry of storage_data; `chunk` is null for an object.
void write_place(PickleWriter& pickle, const std::string& key, const DistChunk* chunk, int64_t index,
                 const DistPlace& place) {
  pickle.object(kMetadataModule, "MetadataIndex");
  pickle.begin_dict();
  pickle.text("fqn");
  pickle.text(key);
  pickle.text("offset");
  chunk ? pickle.sizes(chunk->box.offset) : pickle.none();
  pickle.text("index");
  chunk ? pickle.integer(index) : pickle.none();
  pickle.end_dict();
  pickle.set_state();
  pickle.object("torch.distributed.checkpoint.filesystem", "_StorageInfo");
  pickle.begin_dict();
  pickle.text("relative_path");
  pickle.text(place.file);
  pickle.text("offset");
  pickle.integer(static_cast<int64_t>(place.offset));
  pickle.text("length");
  pickle.integer(static_cast<int64_t>(place.size));
  pickle.text("transform_descriptors");
  pickle.none();
  pickle.end_dict();
  pickle.set_state();
}

}  // namespace

std::string torch_archive(const std::string& pickle) {
  std::string archive;
  ZipWriter zip([&](size_t offset, std::span<const std::byte> bytes) {
    archive.resize(std::max(archive.size(), offset + bytes.size()));
    archive.replace(offset, bytes.size(), reinterpret_cast<const char*>(bytes.data()), bytes.size());
  });
  begin_archive(zip, pickle);
  end_archive(zip);
  return archive;
}

std::string dist_metadata_pickle(const DistMetadata& metadata) {
  PickleWriter pickle;
  pickle.object(kMetadataModule, "Metadata");
  pickle.begin_dict();
  pickle.text("state_dict_metadata");
  pickle.begin_dict();
  for (const DistTensor& tensor : metadata.tensors) {
    pickle.text(tensor.key);
    write_tensor(pickle, tensor);
  }
  for (const DistObject& object : metadata.objects) {
    pickle.text(object.key);
    pickle.object(kMetadataModule, "BytesStorageMetadata");
  }
  pickle.end_dict();
  pickle.text("planner_data");
  pickle.none();
  pickle.text("storage_data");
  pickle.begin_dict();
  for (const DistTensor& tensor : metadata.tensors)
    for (size_t i = 0; i < tensor.chunks.size(); ++i)
      write_place(pickle, tensor.key, &tensor.chunks[i], static_cast<int64_t>(i), tensor.chunks[i].place);
  for (const DistObject& object : metadata.objects) write_place(pickle, object.key, nullptr, 0, object.place);
  pickle.end_dict();
  pickle.text("storage_meta");
  pickle.none();
  pickle.end_dict();
  pickle.set_state();
  return pickle.finish();
}

DistWriter::DistWriter(std::string directory, int64_t file_bytes)
    : directory_(std::move(directory)), file_bytes_(static_cast<size_t>(file_bytes)) {}

// Archives begin where their data are aligned in the file, too.
DistPlace DistWriter::place_of_next() {
  if (file_ && at_ >= file_bytes_) {
    file_->commit();
    file_.reset();
  }
  const std::string name = fmt::format("__0_{}.distcp", file_ ? files_ - 1 : files_);
  if (!file_) {
    file_ = std::make_unique<AtomicFile>(directory_ + "/" + name);
    ++files_;
    at_ = 0;
  }
  at_ = (at_ + 63) / 64 * 64;
  return {name, at_, 0};
}

ZipWriter::Sink DistWriter::sink(const DistPlace& place) {
  return [this, begin = place.offset](size_t offset, std::span<const std::byte> bytes) {
    file_->write_at(begin + offset, bytes);
  };
}

void DistWriter::add_object(const std::string& key, const std::string& pickle) {
  DistPlace place = place_of_next();
  const std::string archive = torch_archive(pickle);
  file_->write_at(place.offset, std::as_bytes(std::span(std::string_view(archive))));
  place.size = archive.size();
  at_ += place.size;
  metadata_.objects.push_back({key, place});
}

void DistWriter::add_tensor(const std::string& key, DType dtype, const Shape& shape) {
  metadata_.tensors.push_back({key, dtype, shape, {}});
}

void DistWriter::add_chunk(const Box& box,
                           const std::function<void(const Box& within, const Tensor& target)>& fill) {
  DistTensor& tensor = metadata_.tensors.back();
  DistPlace place = place_of_next();
  ZipWriter zip(sink(place));
  begin_archive(zip, tensor_pickle(tensor.dtype, box.extent));
  const auto width = static_cast<int64_t>(size_of(tensor.dtype));
  zip.begin("archive/data/0", static_cast<size_t>(box.volume() * width));
  StagingBuffer staging;
  for (const Box& within : cut(box.extent, StagingBuffer::kPieceBytes / width)) {
    const Tensor piece = staging.tensor(within.extent, tensor.dtype);
    fill(within, piece);
    zip.write({static_cast<const std::byte*>(piece.raw()), piece.bytes()});
  }
  zip.end();
  place.size = end_archive(zip);
  at_ += place.size;
  tensor.chunks.push_back({box, place});
}

void DistWriter::finish() {
  if (file_) file_->commit();
  file_.reset();
  write_file_atomically(directory_ + "/.metadata", dist_metadata_pickle(metadata_));
}

}  // namespace megatron
