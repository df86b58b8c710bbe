#include "megatron/resilience/remote_hosts.h"

#include <charconv>
#include <fstream>
#include <set>
#include <sstream>

#include "megatron/base/error.h"
#include "megatron/resilience/shell_words.h"

namespace megatron {
namespace {

// Runs "$@" in $1 and does as its input says. The command is a session of its own, so that what it starts
// gets the signals too.
constexpr std::string_view kRemoteShell = R"(exec 3<&0 </dev/null
cd "$1" || exit 1
shift
setsid "$@" 3<&- &
child=$!
send() { kill -s "$1" -- "-$child" || kill -s "$1" "$child"; }
{ while read -r name <&3; do send "$name"; done; send KILL; } >/dev/null 2>&1 &
reader=$!
exec 3<&-
wait "$child"
code=$?
kill -s KILL "$reader"
exit "$code")";

int parse_slots(const std::string& path, int line, const std::string& word) {
  constexpr std::string_view key = "slots=";
  int slots = 0;
  const char *begin = word.data() + key.size(), *end = word.data() + word.size();
  if (!word.starts_with(key) || std::from_chars(begin, end, slots).ptr != end || begin == end || slots < 1)
    throw ConfigError(
        fmt::format("--hosts: {}:{}: '{}' is not understood; a line is a machine and slots=N, N at least 1",
                    path, line, word));
  return slots;
}

}  // namespace

std::vector<RemoteHost> read_hosts(const std::string& path, int default_slots) {
  std::ifstream file(path);
  if (!file)
    throw ConfigError(fmt::format("--hosts: {} cannot be read; give a file with a machine a line", path));
  std::vector<RemoteHost> hosts;
  std::set<std::string> names;
  std::string text;
  for (int line = 1; std::getline(file, text); ++line) {
    std::istringstream words(text.substr(0, text.find('#')));
    RemoteHost host{.name = {}, .slots = default_slots};
    if (!(words >> host.name)) continue;
    if (host.name.starts_with('-'))
      throw ConfigError(fmt::format("--hosts: {}:{}: '{}' is no machine", path, line, host.name));
    if (!names.insert(host.name).second)
      throw ConfigError(
          fmt::format("--hosts: {}:{}: {} stands twice; give it slots=N instead", path, line, host.name));
    for (std::string word; words >> word;) host.slots = parse_slots(path, line, word);
    hosts.push_back(std::move(host));
  }
  if (hosts.empty()) throw ConfigError(fmt::format("--hosts: {} names no machine; write one a line", path));
  return hosts;
}

RemotePlace place_of(const std::vector<RemoteHost>& hosts, int rank) {
  size_t host = 0;
  for (; rank >= hosts.at(host).slots; ++host) rank -= hosts[host].slots;
  return {host, rank, hosts[host].slots};
}

std::string address_of(const RemoteHost& host) {
  const size_t at = host.name.find('@');
  return at == std::string::npos ? host.name : host.name.substr(at + 1);
}

std::vector<std::string> remote_command(const std::vector<std::string>& ssh, const RemoteHost& host,
                                        const std::string& folder, const std::vector<std::string>& variables,
                                        const std::vector<std::string>& command) {
  std::string line = "exec env";
  for (const std::string& variable : variables) line += " " + shell_quoted(variable);
  line += " sh -c " + shell_quoted(std::string(kRemoteShell)) + " launch " + shell_quoted(folder);
  for (const std::string& word : command) line += " " + shell_quoted(word);
  std::vector<std::string> words = ssh;
  // No password can be typed, and a machine that has gone is noticed.
  for (const char* option :
       {"BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=3"})
    words.insert(words.end(), {"-o", option});
  words.insert(words.end(), {host.name, line});
  return words;
}

}  // namespace megatron
