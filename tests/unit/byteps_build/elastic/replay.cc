// Recorded schedules of the reference in Python (tests/models/membership/recorded.py), played again by the exchange and
// the round table as they are built. What follows from each event must be the same.
//
//     replay FILE
//
// Prints the number of jobs and of events. What a schedule leaves open is chosen here: what buffers hold, how large the
// windows are, when servers give receipts, and when the first half of a message is read, which may be long before the
// event of its arrival.

#include <signal.h>

#include <cstdio>
#include <fstream>

#include "exchange_part.h"
#include "table_part.h"

// COMPONENT WHAT ARGUMENTS... > EFFECTS...
size_t Parse(size_t line, const std::string& text, Event* event) {
  const size_t end = text.find(" >");
  std::istringstream words(text.substr(0, end));
  size_t component = 0;
  words >> component >> event->what;
  for (std::string word; words >> word;) event->args.push_back(Number(word));
  event->line = line;
  event->text = text;
  event->expected = text.substr(std::min(text.size(), end + 3));
  return component;
}

int main(int, char** arguments) {
  setenv("DYNAMIX_ELASTIC", "1", 1);
  signal(SIGABRT, TellWhere);
  ps::PieceTransport::Instance() = &network;
  std::ifstream file(arguments[1]);
  std::map<size_t, std::unique_ptr<Component>> components;
  size_t jobs = 0, events = 0, lines = 0;
  for (std::string text;;) {
    const bool more = static_cast<bool>(std::getline(file, text));
    if (!more || text.compare(0, 5, "seed ") == 0) {
      for (auto& one : components) one.second->Play();
      components.clear();
      if (!more) break;
      ++jobs;
      seed = std::stoull(text.substr(5));
      chance.seed(seed);
    }
    ++lines;
    if (text.compare(0, 5, "seed ") == 0) continue;
    Event event;
    const size_t component = Parse(lines, text, &event);
    ++events;
    if (event.what == "exchange") {
      components[component].reset(new ExchangePart(event));
    } else if (event.what == "table") {
      components[component].reset(new TablePart());
    } else {
      components.at(component)->events.push_back(std::move(event));
    }
  }
  std::printf("%zu %zu\n", jobs, events);
}
