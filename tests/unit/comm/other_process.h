#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <string>
#include <vector>

extern char** environ;

namespace megatron::testing {

// This program as another process, which runs one disabled test with further variables. It ends with the
// object.
class OtherProcess {
 public:
  OtherProcess(const std::string& test, std::vector<std::string> variables) {
    std::vector<std::string> words = {"test", "--gtest_also_run_disabled_tests", "--gtest_filter=" + test};
    std::vector<char*> arguments, environment;
    for (std::string& word : words) arguments.push_back(word.data());
    for (std::string& variable : variables) environment.push_back(variable.data());  // the first one counts
    for (char** entry = environ; *entry; ++entry) environment.push_back(*entry);
    arguments.push_back(nullptr);
    environment.push_back(nullptr);
    EXPECT_EQ(::posix_spawn(&pid_, "/proc/self/exe", nullptr, nullptr, arguments.data(), environment.data()),
              0);
  }
  ~OtherProcess() {
    kill(SIGKILL);
    if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
  }
  OtherProcess(const OtherProcess&) = delete;
  OtherProcess& operator=(const OtherProcess&) = delete;

  pid_t pid() const { return pid_; }
  void kill(int signal) const {
    if (pid_ > 0) ::kill(pid_, signal);
  }
  // Returns when the process has stopped.
  void stop() const {
    kill(SIGSTOP);
    int status = 0;
    ASSERT_EQ(::waitpid(pid_, &status, WUNTRACED), pid_);
    ASSERT_TRUE(WIFSTOPPED(status));
  }

 private:
  pid_t pid_ = 0;
};

}  // namespace megatron::testing
