#include "megatron/server/chat_output.h"

namespace megatron {
namespace {

const std::string kThink = "<think>", kThinkEnd = "</think>", kCall = "<tool_call>",
                  kCallEnd = "</tool_call>";
constexpr const char* kSpace = " \n";

}  // namespace

ChatOutput::ChatOutput(const ChatOutputOptions& options) : options_(options), scanner_({}) {
  enter(options.begins_in_reasoning ? State::reasoning : behind_reasoning());
}

ChatOutput::State ChatOutput::behind_reasoning() const {
  return options_.only_calls && options_.tools != ToolFormat::hermes ? State::calls_to_end : State::content;
}

void ChatOutput::enter(State state) {
  state_ = state;
  markers_.clear();
  if (state == State::content) {
    if (options_.tools == ToolFormat::hermes) markers_.push_back(kCall);
    if (options_.tools == ToolFormat::mistral) markers_.emplace_back("[TOOL_CALLS]");
    if (options_.tools == ToolFormat::llama3) markers_.emplace_back("<|python_tag|>");
    if (options_.reasoning && !thought_) markers_.push_back(kThink);
  }
  if (state == State::reasoning) {
    thought_ = true;
    markers_.push_back(kThinkEnd);
  }
  if (state == State::call) markers_.push_back(kCallEnd);
  scanner_ = MarkerScanner(markers_);
}

void ChatOutput::add(ChatPart::Kind kind, std::string text, std::vector<ChatPart>& parts) {
  if (trims_) {
    text.erase(0, std::min(text.find_first_not_of('\n'), text.size()));
    trims_ = text.empty();
  }
  if (text.empty()) return;
  if (kind == ChatPart::Kind::content) said_ = said_ || text.find_first_not_of(kSpace) != std::string::npos;
  if (!parts.empty() && parts.back().kind == kind)
    parts.back().text += text;
  else
    parts.push_back({kind, std::move(text)});
}

// `otherwise` is said as it stands where the text is no call.
void ChatOutput::add_calls(const std::string& text, const std::string& otherwise,
                           std::vector<ChatPart>& parts) {
  const auto found = read_tool_calls(text);
  if (!found) return add(ChatPart::Kind::content, otherwise, parts);
  for (const ToolCall& call : *found) {
    if (calls_ > 0 && !options_.several_calls) return;
    parts.push_back({ChatPart::Kind::call, call.arguments, call.name});
    ++calls_;
  }
}

void ChatOutput::pass(const std::string& marker, std::vector<ChatPart>& parts) {
  if (state_ == State::call) add_calls(call_, kCall + call_ + kCallEnd, parts);
  call_.clear();
  trims_ = true;
  if (marker == kThink) return enter(State::reasoning);
  if (marker == kThinkEnd) return enter(behind_reasoning());
  if (marker == kCallEnd) return enter(State::content);
  enter(marker == kCall ? State::call : State::calls_to_end);
}

void ChatOutput::read(std::string text, std::vector<ChatPart>& parts) {
  while (true) {
    // Llama writes nothing but the call, which begins with a brace.
    if (state_ == State::content && options_.tools == ToolFormat::llama3 && !said_)
      if (const size_t first = text.find_first_not_of(kSpace);
          first != std::string::npos && text[first] == '{')
        enter(State::calls_to_end);
    if (state_ == State::calls_to_end) {
      call_ += text;
      return;
    }
    MarkerScanner::Found found = scanner_.push(text);
    if (state_ == State::call) {
      call_ += found.before;
    } else if (state_ == State::reasoning) {
      add(ChatPart::Kind::reasoning, found.before, parts);
    } else {
      // Space before a tag and between two calls is not said.
      const bool blank = found.before.find_first_not_of(kSpace) == std::string::npos;
      if (!blank || (found.marker < 0 && calls_ == 0)) add(ChatPart::Kind::content, found.before, parts);
    }
    if (found.marker < 0) return;
    pass(markers_[static_cast<size_t>(found.marker)], parts);
    text = std::move(found.after);
  }
}

std::vector<ChatPart> ChatOutput::push(const std::string& text) {
  std::vector<ChatPart> parts;
  read(text, parts);
  return parts;
}

std::vector<ChatPart> ChatOutput::finish() {
  std::vector<ChatPart> parts;
  const std::string rest = scanner_.flush();
  if (state_ == State::calls_to_end) {
    add_calls(call_, call_, parts);
  } else if (state_ == State::call) {
    add_calls(call_ + rest, kCall + call_ + rest, parts);
  } else {
    add(state_ == State::reasoning ? ChatPart::Kind::reasoning : ChatPart::Kind::content, rest, parts);
  }
  return parts;
}

}  // namespace megatron
