// Which memory orders and fences of the protocols are needed: each one that the scenes execute is weakened, one at a
// time, and some scene must fail. Orders whose weakening no scene notices are listed with the reason; each line of that
// list must be true.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "scenes/scenes.hpp"

using namespace ps_shm::test;

namespace {

const bool g_full = std::getenv("PS_SHM_TEST_FULL") != nullptr;

// An order whose weakening no scene notices. `what`: file, operation and label, in the format of orders_of().
struct UnneededOrder {
  std::string what, why;
};

#include "scenes/unneeded_orders.inc"

std::string line_of(const std::string& file, std::uint32_t line) {
  const std::size_t source = file.find("src/shm/");
  std::ifstream in(PS_SHM_SOURCE_DIR "/" + file.substr(source == std::string::npos ? 0 : source));
  std::string text;
  for (std::uint32_t i = 0; i < line && std::getline(in, text);) ++i;
  return text;
}

// The label in the comment of the line, or of the line above.
std::string label_of(const std::string& file, std::uint32_t line) {
  for (const std::uint32_t at : {line, line - 1}) {
    const std::string text = line_of(file, at);
    const std::size_t comment = text.find("//"), open = text.find('(', comment == std::string::npos ? 0 : comment);
    if (comment == std::string::npos || open == std::string::npos) continue;
    return text.substr(open + 1, text.find_first_of(",)", open) - open - 1);
  }
  return "?";
}

struct Order {
  Mutation mutation;
  std::string what;
};

const char* name_of(Weaker weaker) {
  return weaker == Weaker::kNoAcquire ? "acquire" : weaker == Weaker::kNoRelease ? "release" : "order";
}
const char* name_of(Operation operation) {
  switch (operation) {
    case Operation::kLoad:
      return "load";
    case Operation::kStore:
      return "store";
    case Operation::kExchange:
      return "exchange";
    case Operation::kFailure:
      return "lost exchange";
    case Operation::kFence:
      return "fence";
  }
  return "";
}

// The orders that a scene executes.
std::vector<Order> orders_of(Scene& scene) {
  g_places.clear();
  g_notes_places = true;
  scene.explorer.sample(300, 7);
  g_notes_places = false;
  std::vector<Order> orders;
  for (const auto& [place, function] : g_places) {
    const auto& [file, line, column, operation, order] = place;
    if (file.find("src/shm/") == std::string::npos) continue;
    const std::size_t end = function.find('('), begin = function.find_last_of(": ", end) + 1;
    std::vector<Weaker> weakers;
    if (order == std::memory_order_seq_cst)
      weakers = {Weaker::kNoOrder};
    else {
      if (acquires(order)) weakers.push_back(Weaker::kNoAcquire);
      if (releases(order)) weakers.push_back(Weaker::kNoRelease);
    }
    for (const Weaker weaker : weakers)
      orders.push_back(
          {{file, line, column, operation, weaker},
           fmt::format("{} {} {}: {} of {}", file.substr(file.rfind('/') + 1), function.substr(begin, end - begin),
                       label_of(file, line), name_of(weaker), name_of(operation))});
  }
  return orders;
}

bool is_listed(const std::string& what) {
  const auto has = [&](const UnneededOrder& one) { return one.what == what; };
  return std::any_of(std::begin(kUnneededOrders), std::end(kUnneededOrders), has) ||
         (!g_full && std::any_of(std::begin(kRarelyMissed), std::end(kRarelyMissed), has));
}

}  // namespace

TEST_CASE("orders: each is needed, or listed as unneeded with the reason") {
  const char* only = std::getenv("PS_SHM_SCENE_ORDER");
  struct Verdict {
    std::string what, caught_by;
    std::set<std::string> scenes;
  };
  std::map<std::tuple<std::string, std::uint32_t, std::uint32_t, Operation, Weaker>, Verdict> verdicts;
  for (const SceneCase& one : all_scenes()) {
    const auto scene = one.make();
    for (const Order& order : orders_of(*scene)) {
      const Mutation& m = order.mutation;
      Verdict& verdict = verdicts[{std::string(m.file), m.line, m.column, m.operation, m.weaker}];
      verdict.what = order.what;
      verdict.scenes.insert(one.name);
    }
  }
  for (const SceneCase& one : all_scenes()) {
    const auto scene = one.make();
    for (auto& [place, verdict] : verdicts) {
      if (!verdict.caught_by.empty() || verdict.scenes.count(one.name) == 0) continue;
      if (only != nullptr && verdict.what.find(only) == std::string::npos) continue;
      if (!g_full && only == nullptr && is_listed(verdict.what)) continue;
      const auto& [file, line, column, operation, weaker] = place;
      scene->explorer.weaken({file, line, column, operation, weaker});
      Explored found = scene->explorer.sample(g_full ? 20000 : 1500, 3);
      if (found.failure.empty()) found = scene->explorer.explore(g_full ? 1'000'000 : 20'000);
      if (!found.failure.empty()) verdict.caught_by = fmt::format("{} ({})", one.name, found.failure);
    }
  }
  std::map<std::string, std::vector<std::string>> unneeded;  // which scene notices, and the location
  std::size_t caught = 0;
  std::string table;
  for (const auto& [place, verdict] : verdicts) {
    if (only != nullptr && verdict.what.find(only) == std::string::npos) continue;
    caught += !verdict.caught_by.empty();
    table += fmt::format("{} line {}: {}\n", verdict.what, std::get<1>(place),
                         verdict.caught_by.empty() ? "no scene misses it" : verdict.caught_by);
    if (verdict.caught_by.empty()) unneeded[verdict.what].push_back(fmt::format("line {}", std::get<1>(place)));
  }
  MESSAGE(table << caught << " of " << verdicts.size() << " are needed");
  for (const auto& one : unneeded)
    CHECK_MESSAGE(is_listed(one.first),
                  one.first << ", " << one.second.front() << ": no scene misses it, and it is not listed");
  for (const UnneededOrder& one : kUnneededOrders)  // without PS_SHM_TEST_FULL only their existence is checked
    if (only == nullptr)
      CHECK_MESSAGE(unneeded.count(one.what) == 1, one.what << " is listed as unneeded, and is needed or gone");
}
