#include "megatron/datasets/index/index_array.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <filesystem>

#include "megatron/base/atomic_file.h"
#include "megatron/base/error.h"
#include "megatron/base/mapped_file.h"

namespace megatron {
namespace {

constexpr std::string_view kMagic{"\x93NUMPY", 6};

constexpr std::string_view npy_name(IndexType type) {
  constexpr std::string_view names[] = {"<i2", "<i4", "<i8", "<u4"};
  return names[static_cast<size_t>(type)];
}

// The text behind 'key': in the header's Python dictionary.
std::string_view field(std::string_view header, std::string_view key, const std::string& path) {
  const size_t at = header.find(fmt::format("'{}':", key));
  require(at != std::string_view::npos, "{}: its header has no {}", path, key);
  std::string_view rest = header.substr(at + key.size() + 3);
  rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
  return rest;
}

std::vector<int64_t> parse_shape(std::string_view text, const std::string& path) {
  std::vector<int64_t> shape;
  const size_t end = text.find(')');
  require(text.starts_with('(') && end != std::string_view::npos, "{}: its header has no shape", path);
  const char* at = text.data() + 1;
  const char* const last = text.data() + end;
  while (at < last) {
    int64_t size = 0;
    const auto [next, error] = std::from_chars(at, last, size);
    require(error == std::errc{} && size >= 0 && size <= (int64_t{1} << 48),
            "{}: its header has a malformed shape", path);
    shape.push_back(size);
    at = next;
    while (at < last && (*at == ',' || *at == ' ')) ++at;
  }
  return shape;
}

// As NumPy writes it, with its room for a longer first dimension; the data begins at a multiple of 64.
std::string npy_header(IndexType type, const std::vector<int64_t>& shape) {
  std::string sizes;
  for (size_t i = 0; i < shape.size(); ++i) sizes += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  if (shape.size() == 1) sizes += ",";
  std::string text =
      fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}", npy_name(type), sizes);
  text.append(21 - std::to_string(shape[0]).size(), ' ');
  const size_t before = kMagic.size() + 4;
  text.append(64 - (before + text.size() + 1) % 64, ' ');
  text += '\n';
  std::string header(kMagic);
  header += std::string("\x01\x00", 2);
  header += static_cast<char>(text.size() & 0xff);
  header += static_cast<char>(text.size() >> 8);
  return header + text;
}

}  // namespace

IndexArray open_npy(const std::string& path) {
  auto file = std::make_shared<const MappedFile>(path);
  const std::span<const std::byte> bytes = file->bytes();
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  require(text.size() >= 12 && text.starts_with(kMagic), "{}: it is no .npy file, or was cut", path);
  const int version = text[6];
  require(version == 1 || version == 2, "{}: .npy version {}, expected 1 or 2", path, version);
  size_t length = static_cast<uint8_t>(text[8]) | size_t{static_cast<uint8_t>(text[9])} << 8;
  if (version == 2)
    length |= size_t{static_cast<uint8_t>(text[10])} << 16 | size_t{static_cast<uint8_t>(text[11])} << 24;
  const size_t begin = version == 1 ? 10 : 12;
  require(length <= text.size() - begin, "{}: its header of {} bytes leaves the file", path, length);
  const std::string_view header = text.substr(begin, length);
  require(field(header, "fortran_order", path).starts_with("False"), "{}: is in Fortran order", path);
  const std::string_view descr = field(header, "descr", path);
  std::vector<int64_t> shape = parse_shape(field(header, "shape", path), path);
  require(shape.size() == 1 || shape.size() == 2, "{}: has {} dimensions, expected 1 or 2", path,
          shape.size());
  for (IndexType type : {IndexType::i2, IndexType::i4, IndexType::i8, IndexType::u4}) {
    if (!descr.starts_with(fmt::format("'{}'", npy_name(type)))) continue;
    const unsigned __int128 wanted = static_cast<unsigned __int128>(shape[0]) *
                                     static_cast<uint64_t>(shape.size() == 2 ? shape[1] : 1) * size_of(type);
    require(wanted == text.size() - begin - length, "{}: {} bytes of data do not match its shape", path,
            text.size() - begin - length);
    return IndexArray(file, bytes.data() + begin + length, type, std::move(shape));
  }
  fail("{}: elements of type {}, expected '<i2', '<i4', '<i8' or '<u4'", path,
       descr.substr(0, std::min<size_t>(8, descr.size())));
}

IndexArrayBuilder::IndexArrayBuilder(std::string path, IndexType type, std::vector<int64_t> shape)
    : path_(std::move(path)), type_(type), shape_(std::move(shape)) {
  bytes_ = size_of(type_);
  for (int64_t size : shape_) bytes_ *= static_cast<size_t>(size);
  void* memory;
  std::string header;
  if (path_.empty()) {
    mapped_ = std::max<size_t>(bytes_, 1);
    memory = ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    require(memory != MAP_FAILED, "cannot allocate an index of {} bytes: {}", bytes_, std::strerror(errno));
  } else {
    header = npy_header(type_, shape_);
    mapped_ = header.size() + bytes_;
    // Ranks may be threads of one process: the name is this builder's alone.
    partial_ = fmt::format("{}.{}.{}.partial", path_, ::getpid(), static_cast<const void*>(this));
    fd_ = ::open(partial_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    require(fd_ >= 0, "cannot create {}: {}", partial_, std::strerror(errno));
    const int error = ::posix_fallocate(fd_, 0, static_cast<off_t>(mapped_));
    if (error != 0) {
      ::close(fd_);
      ::unlink(partial_.c_str());
      fail("cannot write {} bytes to {}: {}", mapped_, partial_, std::strerror(error));
    }
    memory = ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    require(memory != MAP_FAILED, "cannot map {}: {}", partial_, std::strerror(errno));
    std::memcpy(memory, header.data(), header.size());
  }
  mapping_ = std::shared_ptr<void>(memory, [size = mapped_](void* p) { ::munmap(p, size); });
  data_ = static_cast<std::byte*>(memory) + header.size();
}

IndexArrayBuilder::~IndexArrayBuilder() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(partial_.c_str());
}

IndexArray IndexArrayBuilder::finish() {
  if (fd_ >= 0) {
    // Names must not outlive a power failure without their contents.
    const bool synced = ::fdatasync(fd_) == 0;
    require(synced, "cannot bring {} to the disk: {}", partial_, std::strerror(errno));
    const bool renamed = ::rename(partial_.c_str(), path_.c_str()) == 0;
    require(renamed, "cannot rename {} to {}: {}", partial_, path_, std::strerror(errno));
    ::close(fd_);
    fd_ = -1;
  }
  return IndexArray(mapping_, data_, type_, shape_);
}

}  // namespace megatron
