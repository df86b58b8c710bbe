#pragma once

#include <string>
#include <vector>

namespace megatron {

// A machine that ssh reaches, and how many processes run there.
struct RemoteHost {
  std::string name;
  int slots = 1;
};

// The machines of a file, one a line: `node1`, `user@10.0.0.2 slots=8`; # begins a comment. A line without
// slots has `default_slots`. A ConfigError names file and line of what it cannot read.
std::vector<RemoteHost> read_hosts(const std::string& path, int default_slots);

// Where a rank runs: its machine, its place there, and how many ranks are there.
struct RemotePlace {
  size_t host;
  int local_rank, local_size;
};
RemotePlace place_of(const std::vector<RemoteHost>& hosts, int rank);
// The machine's address: its name without a user.
std::string address_of(const RemoteHost& host);

// The words that run `command` on a machine, in `folder` and with these variables (NAME=value). Names of
// signals on its standard input, a line each, are sent to the command; the input's end kills it, so that
// nothing is left where the connection or the launcher is lost.
std::vector<std::string> remote_command(const std::vector<std::string>& ssh, const RemoteHost& host,
                                        const std::string& folder, const std::vector<std::string>& variables,
                                        const std::vector<std::string>& command);

}  // namespace megatron
