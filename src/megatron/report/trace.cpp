#include "megatron/report/trace.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "megatron/base/json.h"

namespace megatron::report {
namespace {

constexpr const char* kLanes[] = {"compute", "communication", "pipeline", "data"};

int64_t lane_number(TraceLane lane) { return static_cast<int64_t>(lane) + 1; }

Json event(const char* phase, int64_t rank, int64_t lane, std::string_view name) {
  Json json = Json::object();
  json["ph"] = phase;
  json["pid"] = rank;
  json["tid"] = lane;
  json["name"] = name;
  return json;
}

// What a rank or a lane is called, and where it stands.
void add_names(int64_t rank, int64_t lane, const char* what, const char* order, std::string_view name,
               int64_t place, Json& events) {
  Json named = event("M", rank, lane, what);
  named["args"] = Json::object();
  named["args"]["name"] = name;
  events.push_back(std::move(named));
  Json sorted = event("M", rank, lane, order);
  sorted["args"] = Json::object();
  sorted["args"]["sort_index"] = place;
  events.push_back(std::move(sorted));
}

double first_time(const Trace& trace) {
  double first = trace.spans.empty() ? 0 : trace.spans.front().begin;
  for (const TraceSpan& span : trace.spans) first = std::min(first, span.begin);
  for (const TraceMessage& message : trace.messages) first = std::min(first, message.sent);
  for (const TraceCounter& counter : trace.counters) first = std::min(first, counter.time);
  return first;
}

}  // namespace

std::string chrome_trace(const Trace& trace) {
  const double zero = first_time(trace);
  Json events = Json::array();
  std::set<std::pair<int64_t, TraceLane>> lanes;
  for (const TraceSpan& span : trace.spans) lanes.insert({span.rank, span.lane});
  for (const TraceMessage& message : trace.messages)
    for (int64_t rank : {message.from, message.to}) lanes.insert({rank, TraceLane::pipeline});
  int64_t last = -1;
  for (const auto& [rank, lane] : lanes) {
    if (rank != last)
      add_names(rank, 0, "process_name", "process_sort_index", "rank " + std::to_string(rank), rank, events);
    last = rank;
    const int64_t number = lane_number(lane);
    add_names(rank, number, "thread_name", "thread_sort_index", kLanes[static_cast<size_t>(lane)], number,
              events);
  }
  for (const TraceSpan& span : trace.spans) {
    Json row = event("X", span.rank, lane_number(span.lane), span.name);
    row["ts"] = span.begin - zero;
    row["dur"] = span.end - span.begin;
    events.push_back(std::move(row));
  }
  int64_t id = 0;
  for (const TraceMessage& message : trace.messages) {
    const int64_t lane = lane_number(TraceLane::pipeline);
    Json start = event("s", message.from, lane, message.name);
    Json end = event("f", message.to, lane, message.name);
    start["ts"] = message.sent - zero;
    end["ts"] = message.received - zero;
    end["bp"] = "e";  // the arrow ends at the span around it
    for (Json* row : {&start, &end}) {
      (*row)["cat"] = "message";
      (*row)["id"] = id;
    }
    ++id;
    events.push_back(std::move(start));
    events.push_back(std::move(end));
  }
  for (const TraceCounter& counter : trace.counters) {
    Json row = event("C", counter.rank, 0, counter.name);
    row["ts"] = counter.time - zero;
    row["args"] = Json::object();
    row["args"]["value"] = counter.value;
    events.push_back(std::move(row));
  }
  Json document = Json::object();
  document["displayTimeUnit"] = "ms";
  document["traceEvents"] = std::move(events);
  return document.dump();
}

std::vector<TraceMessage> match_messages(std::span<const TraceEnd> ends) {
  struct Queues {
    std::vector<double> sent, received;
  };
  std::map<std::tuple<int64_t, int64_t, std::string>, Queues> pairs;  // from, to, name
  for (const TraceEnd& end : ends) {
    Queues& queues = pairs[end.sends ? std::tuple(end.rank, end.peer, end.name)
                                     : std::tuple(end.peer, end.rank, end.name)];
    (end.sends ? queues.sent : queues.received).push_back(end.time);
  }
  std::vector<TraceMessage> messages;
  for (auto& [key, queues] : pairs) {
    std::sort(queues.sent.begin(), queues.sent.end());
    std::sort(queues.received.begin(), queues.received.end());
    const auto& [from, to, name] = key;
    for (size_t i = 0; i < std::min(queues.sent.size(), queues.received.size()); ++i)
      messages.push_back({from, to, name, queues.sent[i], queues.received[i]});
  }
  return messages;
}

}  // namespace megatron::report
