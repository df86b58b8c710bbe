#pragma once

#include <string>
#include <vector>

#include "megatron/server/marker_scanner.h"
#include "megatron/server/tool_calls.h"

namespace megatron {

struct ChatOutputOptions {
  bool reasoning = false;            // the model may think between <think> and </think>
  bool begins_in_reasoning = false;  // its prompt ends with <think>
  ToolFormat tools = ToolFormat::none;
  bool only_calls = false;  // the answer is nothing but calls, as a constraint holds it to
  bool several_calls = true;
};

// A part of an answer in a conversation.
struct ChatPart {
  enum class Kind { content, reasoning, call } kind;
  std::string text;  // or the call's arguments
  std::string name = {};
};

// Splits the text of an answer into what it says, what it thinks, and the tools that it calls. Text goes on
// as soon as it is certain what it belongs to; a call when it is complete.
class ChatOutput {
 public:
  explicit ChatOutput(const ChatOutputOptions& options);

  std::vector<ChatPart> push(const std::string& text);
  std::vector<ChatPart> finish();
  int calls() const { return calls_; }

 private:
  enum class State { content, reasoning, call, calls_to_end };

  State behind_reasoning() const;
  void enter(State state);
  void read(std::string text, std::vector<ChatPart>& parts);
  void add(ChatPart::Kind kind, std::string text, std::vector<ChatPart>& parts);
  void add_calls(const std::string& text, const std::string& otherwise, std::vector<ChatPart>& parts);
  void pass(const std::string& marker, std::vector<ChatPart>& parts);

  ChatOutputOptions options_;
  State state_ = State::content;
  std::vector<std::string> markers_;  // that lead out of the state
  MarkerScanner scanner_;
  std::string call_;    // text of a call so far
  bool trims_ = false;  // line breaks behind a tag
  bool said_ = false, thought_ = false;
  int calls_ = 0;
};

}  // namespace megatron
