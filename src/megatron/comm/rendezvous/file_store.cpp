#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "megatron/base/error.h"
#include "megatron/comm/patience.h"
#include "megatron/comm/rendezvous/store.h"

namespace megatron {
namespace {

class FileStore final : public Store {
 public:
  FileStore(std::string folder, std::chrono::milliseconds timeout)
      : folder_(std::move(folder)), timeout_(timeout) {
    std::error_code problem;
    std::filesystem::create_directories(folder_, problem);
    require(!problem, "rendezvous folder {}: {}", folder_, problem.message());
  }

  void set(const std::string& key, const std::string& value) override {
    const std::string draft = fmt::format("{}.{}.new", path(key), ::getpid());
    std::ofstream(draft, std::ios::binary) << value;
    std::error_code problem;
    std::filesystem::rename(draft, path(key), problem);
    require(!problem, "rendezvous file {}: {}", path(key), problem.message());
  }

  std::string get(const std::string& key) override {
    Patience patience(timeout_);
    while (!std::filesystem::exists(path(key))) {
      require(!patience.over(),
              "rendezvous: {} did not appear within {:.1f} s: not every process has started, or they do not "
              "see the same folder",
              path(key), static_cast<double>(timeout_.count()) / 1e3);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    std::ostringstream text;
    text << std::ifstream(path(key), std::ios::binary).rdbuf();
    return text.str();
  }

  std::string own_address() const override {
    char name[256] = "localhost";
    ::gethostname(name, sizeof name - 1);
    return name;  // other machines look it up, this one need not know it
  }

 private:
  std::string path(std::string key) const {
    for (char& c : key)
      if (c == '/') c = '.';
    return folder_ + "/" + key;
  }

  std::string folder_;
  std::chrono::milliseconds timeout_;
};

}  // namespace

std::unique_ptr<Store> make_file_store(const std::string& folder, std::chrono::milliseconds timeout) {
  return std::make_unique<FileStore>(folder, timeout);
}

}  // namespace megatron
