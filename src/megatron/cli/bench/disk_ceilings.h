#pragma once

#include <string>

namespace megatron {

// Bytes a second that sequential I/O reaches in a folder.
struct DiskCeilings {
  double write = 0;  // fsync included
  double read = 0;   // of what is no longer in memory
  // Writes pass the page cache by, as those of a save do where the file system can; so do reads of one
  // thread, as those of a run of one rank.
  bool direct = false;
};

// Writes files of `bytes` together, one of each thread, and reads them back; medians of so many passes.
DiskCeilings disk_ceilings(const std::string& folder, size_t bytes, int threads, int64_t passes);

// Asks the system to forget what it keeps of the files of a folder, so that reading them means the disk.
void drop_cached(const std::string& folder);

}  // namespace megatron
