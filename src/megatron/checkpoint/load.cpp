#include "megatron/checkpoint/load.h"

#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>

#include "megatron/base/checksum.h"
#include "megatron/base/nearest.h"
#include "megatron/checkpoint/directory.h"
#include "megatron/checkpoint/host_copy.h"
#include "megatron/checkpoint/host_tensor.h"

namespace megatron {

namespace fs = std::filesystem;

namespace {

std::string_view as_text(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

bool convertible(DType from, DType to) { return from == to || (is_floating(from) && is_floating(to)); }

// Sizes alone, which catches what was cut short without reading it.
void check_sizes(const std::string& directory, const CheckpointIndex& index, Problems& problems) {
  for (const StoredFile& file : index.files) {
    std::error_code error;
    const auto bytes = fs::file_size(fs::path(directory) / file.name, error);
    if (error) {
      problems.add("{}: {}", file.name, error.message());
    } else if (static_cast<int64_t>(bytes) != file.bytes) {
      problems.add("{}: it has {} bytes, not the {} that were written", file.name, bytes, file.bytes);
    }
  }
}

// Asks the system to read a part of a mapped file into memory, without waiting for it.
void read_ahead(std::span<const std::byte> bytes) {
  const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<uintptr_t>(bytes.data()), begin = address / page * page;
  if (!bytes.empty())
    ::madvise(reinterpret_cast<void*>(begin), bytes.size() + (address - begin), MADV_WILLNEED);
}

// The checksum of a part of a mapped file. Page faults would read in small pieces, and one after the other.
std::string checksum_of_mapped(std::span<const std::byte> bytes) {
  constexpr size_t step = size_t{4} << 20, ahead = 8 * step;
  Checksum sum;
  read_ahead(bytes.first(std::min(ahead, bytes.size())));
  for (size_t at = 0; at < bytes.size(); at += step) {
    const size_t next = std::min(at + ahead, bytes.size());
    read_ahead(bytes.subspan(next, std::min(step, bytes.size() - next)));
    sum.update(bytes.subspan(at, std::min(step, bytes.size() - at)));
  }
  return sum.hex();
}

// What is wrong with a chunk's bytes; empty where nothing is, or no checksum was made.
std::string chunk_damage(const SafetensorsFile& file, const SafetensorsEntry& entry,
                         const StoredChunk& chunk) {
  if (chunk.checksum.empty()) return {};
  return checksum_damage(entry.name, checksum_of_mapped(file.bytes(entry)), chunk.checksum);
}

std::string header_damage(const SafetensorsFile& file, const StoredFile& stored) {
  return checksum_damage(stored.name + ": its header", checksum_of(file.header()), stored.header_checksum);
}

// A file holds what the index says it does.
void check_contents(const SafetensorsFile& contents, const CheckpointIndex& index, int file,
                    Problems& problems) {
  size_t expected = 0;
  for (const StoredTensor& tensor : index.tensors) {
    for (const StoredChunk& piece : tensor.pieces) {
      if (piece.file != file) continue;
      ++expected;
      const std::string key = piece_key(tensor, piece.box);
      const SafetensorsEntry* entry = contents.find(key);
      if (!entry) {
        problems.add("{}: {} is missing", index.files[file].name, key);
      } else if (entry->dtype != tensor.dtype || !(entry->shape == piece.box.extent)) {
        problems.add("{}: {} is {}{}, not {}{}", index.files[file].name, key, entry->dtype, entry->shape,
                     tensor.dtype, piece.box.extent);
      } else if (const std::string damage = chunk_damage(contents, *entry, piece); !damage.empty()) {
        problems.add("{}: {}", index.files[file].name, damage);
      }
    }
  }
  if (expected < contents.entries().size())
    problems.add("{}: {} tensors are not in the index", index.files[file].name,
                 contents.entries().size() - expected);
}

}  // namespace

std::string checksum_damage(std::string_view what, const std::string& found, const std::string& expected) {
  if (expected.empty() || found == expected) return {};
  return fmt::format("{}: its checksum is {}, not {}: its contents have changed", what, found, expected);
}

CheckpointIndex read_index(const std::string& directory, IndexScope scope) {
  const std::string path = directory + "/index.json";
  try {
    const MappedFile text(path), checksum(path + ".xxh64");
    const std::string found = checksum_of(text.bytes());
    if (!as_text(checksum).starts_with(found))
      throw DamagedCheckpoint(
          fmt::format("{} is damaged: its checksum is {}, not that of {}.xxh64", path, found, path));
    return CheckpointIndex::from_json(Json::parse(as_text(text), path), path, scope);
  } catch (const DamagedCheckpoint&) {
    throw;
  } catch (const Error& error) {
    throw DamagedCheckpoint(error.what());
  }
}

CheckpointReader::CheckpointReader(const std::string& path, bool verify, IndexScope scope)
    : path_(resolve_checkpoint(path)), index_(read_index(path_, scope)), verify_(verify) {
  Problems problems;
  check_sizes(path_, index_, problems);
  if (!problems.empty())
    throw DamagedCheckpoint(fmt::format("the checkpoint {} is damaged:{}", path_, problems.text()));
}

DamagedCheckpoint CheckpointReader::damaged(const std::string& damage) const {
  return DamagedCheckpoint(fmt::format("the checkpoint {} is damaged: {}", path_, damage));
}

DamagedCheckpoint CheckpointReader::damaged(int file, const std::string& damage) const {
  return damaged(fmt::format("{}: {}", index_.files[static_cast<size_t>(file)].name, damage));
}

const SafetensorsFile& CheckpointReader::file(int index) {
  auto found = files_.find(index);
  if (found != files_.end()) return found->second;
  const StoredFile& stored = index_.files[static_cast<size_t>(index)];
  std::optional<SafetensorsFile> opened;
  try {
    opened.emplace(path_ + "/" + stored.name);
  } catch (const Error& error) {
    throw damaged(error.what());
  }
  if (const std::string damage = verify_ ? header_damage(*opened, stored) : ""; !damage.empty())
    throw damaged(damage);
  return files_.emplace(index, std::move(*opened)).first->second;
}

void CheckpointReader::load(RankContext& ctx, std::span<const ShardedTensor> tensors) {
  std::vector<LoadPart> parts;
  for (const ShardedTensor& tensor : tensors) parts.push_back({tensor, tensor.tensor.dtype()});
  load(ctx, parts);
}

void CheckpointReader::check_fit(std::span<const LoadPart> parts) const {
  Problems problems;
  std::vector<std::string> names;
  for (const auto& [target, dtype, begin, end] : parts) {
    const StoredTensor* stored = index_.find(target.name);
    if (!stored) {
      if (names.empty())
        for (const StoredTensor& tensor : index_.tensors) names.push_back(tensor.name);
      const std::string advice = did_you_mean(nearest(target.name, names));
      problems.add("{}: it is missing{}{}", target.name, advice.empty() ? "" : "; ", advice);
    } else if (!(stored->shape == target.shard.global_shape)) {
      problems.add("{}: the checkpoint has {}, the model {}", target.name, stored->shape,
                   target.shard.global_shape);
    } else if (!convertible(stored->dtype, dtype)) {
      problems.add("{}: the checkpoint has {}, the model {}", target.name, stored->dtype, dtype);
    }
  }
  problems.raise(fmt::format("the checkpoint {} does not fit the model", path_));
}

const SafetensorsEntry& CheckpointReader::entry(const StoredTensor& tensor, const StoredChunk& chunk) {
  const std::string key = piece_key(tensor, chunk.box);
  const SafetensorsEntry* found = file(chunk.file).find(key);
  if (!found)
    throw damaged(fmt::format("{} has no {}", index_.files[static_cast<size_t>(chunk.file)].name, key));
  if (found->dtype != tensor.dtype || !(found->shape == chunk.box.extent))
    throw damaged(fmt::format("{} is {}{} there, but {}{} in the index", key, found->dtype, found->shape,
                              tensor.dtype, chunk.box.extent));
  return *found;
}

Tensor CheckpointReader::chunk(const StoredTensor& tensor, const StoredChunk& chunk) {
  const SafetensorsEntry& found = entry(tensor, chunk);
  verify_chunk(tensor, chunk);
  return file(chunk.file).tensor(found.name);
}

void CheckpointReader::verify_chunk(const StoredTensor& tensor, const StoredChunk& chunk) {
  if (!verify_ || !verified_.insert(&chunk).second) return;
  const SafetensorsFile& contents = file(chunk.file);
  const std::string damage = chunk_damage(contents, contents.at(piece_key(tensor, chunk.box)), chunk);
  if (!damage.empty()) throw damaged(chunk.file, damage);
}

Problems verify_checkpoint(const std::string& directory,
                           const std::function<void(const StoredFile&)>& progress) {
  Problems problems;
  CheckpointIndex index;
  try {
    index = read_index(directory);
  } catch (const Error& error) {
    problems.add("{}", error.what());
    return problems;
  }
  check_sizes(directory, index, problems);
  if (!problems.empty()) return problems;
  for (size_t i = 0; i < index.files.size(); ++i) {
    const StoredFile& file = index.files[i];
    if (progress) progress(file);
    const std::string path = directory + "/" + file.name;
    const std::string found = file.checksum.empty() ? "" : checksum_of_file(path);
    if (const std::string damage = checksum_damage(file.name, found, file.checksum); !damage.empty()) {
      problems.add("{}", damage);
    } else if (file.name.ends_with(".safetensors")) {
      try {
        const SafetensorsFile contents(path);
        if (const std::string damage = header_damage(contents, file); !damage.empty())
          problems.add("{}", damage);
        else
          check_contents(contents, index, static_cast<int>(i), problems);
      } catch (const Error& error) {
        problems.add("{}", error.what());
      }
    }
  }
  return problems;
}

}  // namespace megatron
