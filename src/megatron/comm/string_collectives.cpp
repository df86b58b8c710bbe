#include "megatron/comm/string_collectives.h"

#include <algorithm>

namespace megatron {
namespace {

Tensor bytes_of(std::string& text) {
  return Tensor::wrap(text.data(), {static_cast<int64_t>(text.size())}, DType::U8);
}

}  // namespace

std::vector<std::string> all_gather_strings(const ProcessGroup& group, const std::string& own,
                                            CallSite where) {
  std::vector<int64_t> lengths(static_cast<size_t>(group.size()));
  auto length = static_cast<int64_t>(own.size());
  group
      .all_gather(Tensor::wrap(&length, {1}, DType::I64),
                  Tensor::wrap(lengths.data(), {group.size()}, DType::I64), where)
      .wait();
  group.require_running();  // or the lengths may be rubbish
  const auto longest = static_cast<size_t>(*std::max_element(lengths.begin(), lengths.end()));
  std::vector<std::string> texts(lengths.size());
  if (longest == 0) return texts;
  std::string padded = own, all(longest * texts.size(), '\0');
  padded.resize(longest);
  group.all_gather(bytes_of(padded), bytes_of(all), where).wait();
  group.require_running();
  for (size_t i = 0; i < texts.size(); ++i)
    texts[i] = all.substr(i * longest, static_cast<size_t>(lengths[i]));
  return texts;
}

std::string broadcast_text(const ProcessGroup& group, std::string text, int root, CallSite where) {
  auto length = static_cast<int64_t>(text.size());
  group.broadcast(Tensor::wrap(&length, {1}, DType::I64), root, where).wait();
  group.require_running();
  text.resize(static_cast<size_t>(length));
  if (length > 0) group.broadcast(bytes_of(text), root, where).wait();
  group.require_running();
  return text;
}

std::vector<std::string> all_to_all_strings(const ProcessGroup& group, const std::vector<std::string>& texts,
                                            CallSite where) {
  const auto ranks = static_cast<size_t>(group.size());
  require(texts.size() == ranks, "all_to_all_strings: {} texts for {} ranks", texts.size(), ranks);
  std::vector<int64_t> send, receive(ranks);
  std::string out;
  for (const std::string& text : texts) {
    send.push_back(static_cast<int64_t>(text.size()));
    out += text;
  }
  group
      .all_to_all(Tensor::wrap(send.data(), {group.size()}, DType::I64),
                  Tensor::wrap(receive.data(), {group.size()}, DType::I64), where)
      .wait();
  group.require_running();  // or the lengths may be rubbish
  size_t bytes = 0;
  for (const int64_t length : receive) bytes += static_cast<size_t>(length);
  std::string in(bytes, '\0');
  group.all_to_all(bytes_of(out), bytes_of(in), send, receive, where).wait();
  group.require_running();
  std::vector<std::string> received;
  size_t at = 0;
  for (const int64_t length : receive) {
    received.push_back(in.substr(at, static_cast<size_t>(length)));
    at += static_cast<size_t>(length);
  }
  return received;
}

std::vector<std::string> gather_strings(const ProcessGroup& group, const std::string& own, int root,
                                        CallSite where) {
  std::vector<std::string> texts(static_cast<size_t>(group.size()));
  texts[static_cast<size_t>(root)] = own;
  std::vector<std::string> received = all_to_all_strings(group, texts, where);
  if (group.rank() != root) received.clear();
  return received;
}

}  // namespace megatron
