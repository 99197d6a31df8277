// The pages of inspect_shm watch for a synthetic model, and their figures: no terminal, no job.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "inspect_shm/watch/keys.hpp"
#include "inspect_shm/watch/pages.hpp"
#include "inspect_shm/watch/rates.hpp"
#include "inspect_shm/watch/text.hpp"
#include "ps_shm/errors.hpp"

namespace {

using namespace ps_shm;
using namespace ps_shm::watch;

std::string all_of(const Screenful& screen) {
  std::string text;
  for (const Line& line : screen.lines) text += text_of(line) + "\n";
  return text;
}
bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::size_t width_of(const Line& line) {
  const std::string text = text_of(line);
  return static_cast<std::size_t>(std::count_if(
      text.begin(), text.end(), [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; }));
}

Model made_up() {
  Model model;
  model.job = "made-up", model.state = "live";
  model.global_step = 1234, model.target_steps = 5000, model.steps_per_second = 100, model.seconds_left = 37.7;
  model.wanted_workers = 3;
  model.live.lr = 0.05F;
  model.loss = 0.25, model.losses = {2, 1, 0.5, 0.25}, model.speeds = {90, 110, 100};
  model.staleness = {{0, 60}, {1, 30}, {2, 10}};
  model.staleness_summary = {.count = 100, .mean = 0.5, .p50 = 0, .p99 = 2, .max = 2};
  model.bytes.values = 1 << 20, model.bytes.tables = 3 << 20;
  model.tables = {{.name = "items",
                   .rows = 500,
                   .max_rows = 1000,
                   .bytes = 1 << 21,
                   .made_per_second = 12,
                   .evicted_per_second = 3,
                   .hit_rate = 0.25},
                  {.name = "users", .hit_rate = {}}};
  inspect::BridgeInfo& bridge = model.bridge.emplace();
  bridge.is_alive = true, bridge.box = 1, bridge.boxes = 3, bridge.round = 12, bridge.members = {0, 2};
  bridge.dropped = 0, bridge.dropped_steps = 4, bridge.bytes = 1 << 20;
  bridge.seconds = 0.5, bridge.norm = 2.5, bridge.age_seconds = 3;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    WorkerRow& worker = model.workers.emplace_back();
    worker.rank = rank, worker.pid = 100 + rank, worker.device = "cpu", worker.steps = 400 + rank;
    worker.steps_per_second = 50 - rank, worker.loss = 0.25;
    worker.shares = {0.7, 0.1, 0.2, 0};
  }
  model.workers[1].phase = Phase::kWaiting, model.workers[1].phase_seconds = 3.25;
  model.workers[1].waiting_for = "step 1234: rank 2";
  model.workers[2].phase = Phase::kStopped, model.workers[2].phase_seconds = 1.5;
  model.alerts = {"worker 2 (process 102) has been stopped for 1.5 s"};
  for (std::size_t i = 0; i < 40; ++i) {
    VariableRow& variable = model.variables.emplace_back();
    variable.number = i, variable.name = "layer" + std::to_string(i), variable.layout = "versioned";
    variable.shape = "[10]", variable.dtype = "float32", variable.shards = "0", variable.nodes = "-";
    variable.bytes = 40, variable.version = i, variable.updates_per_second = double(i), variable.is_initialised = true;
  }
  model.variables[3].values =
      ValueFacts{.norm = 5, .min = -1, .max = 2, .nans = 7, .infs = 0, .share = 0.5, .update_to_weight = 1e-3};
  model.piece_count = 4;
  model.pieces = {{0, 0, 0, 10, 0}, {1, 0, 0, 5, 0.1}, {2, 0, 0, 0, 0}, {3, 0, 0, 10, 9}};
  Event& event = model.events.emplace_back();
  event.kind = "joined", event.rank = 1, event.text = "worker 1 (process 101) joined";
  return model;
}

Screenful draw_page(const Model& model, ViewState& view, Page page, std::size_t rows = 24, std::size_t columns = 120) {
  view.page = page;
  return draw(model, view, rows, columns);
}

}  // namespace

TEST_CASE("watch: every page has as many lines as the terminal, none wider, at any size") {
  const Model model = made_up();
  for (const bool has_utf8 : {true, false})
    for (std::size_t page = 0; page < kPages; ++page)
      for (const std::size_t rows : {1, 2, 3, 5, 10, 24, 60})
        for (const std::size_t columns : {1, 10, 40, 80, 200}) {
          ViewState view;
          view.has_utf8 = has_utf8;
          const Screenful screen = draw_page(model, view, static_cast<Page>(page), rows, columns);
          CHECK(screen.lines.size() == rows);
          for (const Line& line : screen.lines) CHECK(width_of(line) <= columns);
        }
}

TEST_CASE("watch: an empty model has all pages, too") {
  const Model model;
  for (std::size_t page = 0; page < kPages; ++page) {
    ViewState view;
    CHECK(draw_page(model, view, static_cast<Page>(page)).lines.size() == 24);
  }
}

TEST_CASE("watch: the overview reports what is wrong, the job's progress, and which processes live") {
  ViewState view;
  const std::string text = all_of(draw_page(made_up(), view, Page::kOverview));
  for (const char* part :
       {"! worker 2 (process 102) has been stopped", "step 1234 of 5000", "100 steps/s", "37.7 s left", "lr 0.05",
        "3 alive of 3", "stopped: rank 2", "waiting: rank 1", "60.0 %", "30.0 %", "p99 2", "values 1 MiB",
        "tables 3 MiB", "items: 500 of 1000 rows   12 made/s   3 evicted/s   hits 25 %   2 MiB",
        "box 1 of 3   round 12 with 2, 3.0 s ago   0.5 s and 1 MiB a round   difference 2.5   dropped: 0 elements, 4",
        "users: 0 of 0 rows   0 made/s   0 evicted/s   hits -", "worker 1 (process 101) joined"})
    CHECK_MESSAGE(contains(text, part), part);
  CHECK(contains(text, "█"));
  CHECK(contains(text, "q quit"));
}

TEST_CASE("watch: the overview shows the runtime settings that are in use, the mode and the learning rate first") {
  const auto shown = [](const LiveSettings& live) {
    Model model = made_up();
    model.live = live;
    ViewState view;
    for (const Line& line : draw(model, view, 24, 100).lines)
      if (const std::string text = text_of(line); text.starts_with("mode "))
        return text.substr(11, text.find_last_not_of(' ') - 10);
    return std::string();
  };
  CHECK(shown({.lr = 0.1F, .momentum = 0.9F, .workers = 3}) == "async   lr 0.1");
  CHECK(shown({.mode = Mode::kSsp, .stale_limit = 3, .lr = 0.012345F}) ==
        "ssp   lr 0.01235   staleness 0   stale-limit 3");
  CHECK(shown({.mode = Mode::kSync, .lr = 1, .clip_norm = 1.5F}) ==
        "sync   lr 1   quorum: all   clip-norm 1.5");
  CHECK(shown({.mode = Mode::kSync, .quorum = 2}) == "sync   lr 0   quorum 2");
}

TEST_CASE("watch: the last line has only whole keys, the most needed ones first") {
  for (const auto& [columns, last] : {std::pair<std::size_t, const char*>{120, "<> variable"},
                                      {80, "/ filter"},
                                      {40, "arrows select"},
                                      {10, "q quit"}}) {
    ViewState view;
    const std::string line = text_of(draw_page(made_up(), view, Page::kOverview, 24, columns).lines.back());
    CHECK_MESSAGE(line.ends_with(last), line);
    CHECK(line.starts_with("q quit"));
    if (columns >= 40) CHECK(line.starts_with("q quit  ? help"));
  }
}

TEST_CASE("watch: a terminal without UTF-8 gets only ASCII") {
  for (std::size_t page = 0; page < kPages; ++page) {
    ViewState view;
    view.has_utf8 = false;
    const std::string text = all_of(draw_page(made_up(), view, static_cast<Page>(page)));
    CHECK(std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 128; }));
  }
}

TEST_CASE("watch: a waiting worker is shown with the ranks that it waits for, and for how long") {
  ViewState view;
  const std::string text = all_of(draw_page(made_up(), view, Page::kWorkers));
  CHECK(contains(text, "waiting 3.2 s"));
  CHECK(contains(text, "step 1234: rank 2"));
  CHECK(contains(text, "stopped 1.5 s"));
  CHECK(contains(text, "70   10   20    0"));
}

TEST_CASE("watch: if columns do not fit the most important ones remain") {
  ViewState view;
  const std::string narrow = all_of(draw_page(made_up(), view, Page::kWorkers, 24, 60));
  for (const char* title : {"RANK", "PHASE", "STEPS/S", "WAITING"}) CHECK_MESSAGE(contains(narrow, title), title);
  CHECK_FALSE(contains(narrow, "COMP"));
}

TEST_CASE("watch: lists scroll to the selection, and report which lines are on the page") {
  Model model = made_up();
  ViewState view;
  Screenful screen = draw_page(model, view, Page::kVariables, 14);
  CHECK(screen.count == 40);
  CHECK(screen.shown.front() == 0);  // layer0, layer1, layer10 ...: by name
  CHECK(screen.selected == 0);
  view.here().selected = 39;
  screen = draw_page(model, view, Page::kVariables, 14);
  CHECK(screen.selected == 9);
  CHECK(screen.shown.back() == 9);
  CHECK(screen.shown.size() == 9);
}

TEST_CASE("watch: lists are sorted by numbers as numbers, and filtered by any text in them") {
  const Model model = made_up();
  ViewState view;
  view.page = Page::kVariables;
  view.here().sorted_by = 8, view.here().is_reversed = true;  // updates per second
  CHECK(draw(model, view, 24, 120).shown.front() == 39);
  view.filter = "layer3";
  const Screenful screen = draw(model, view, 24, 120);
  CHECK(screen.count == 11);  // layer3, layer30 to layer39
  CHECK(contains(all_of(screen), "filter: layer3"));
  view.filter = "nobody";
  CHECK(contains(all_of(draw(model, view, 24, 120)), "nothing matches the filter"));
}

TEST_CASE("watch: NaN counts are shown as bad, and a sample reports how much it has read") {
  ViewState view;
  view.filter = "layer3";
  const Screenful screen = draw_page(made_up(), view, Page::kVariables, 24, 200);
  const auto line = std::find_if(screen.lines.begin(), screen.lines.end(),
                                 [](const Line& each) { return contains(text_of(each), "1.0e-03"); });
  REQUIRE(line != screen.lines.end());
  CHECK(contains(text_of(*line), "50 %"));
  ViewState other;
  other.filter = "layer3", other.page = Page::kVariables, other.here().selected = 5;  // the selected line has one style
  bool is_bad = false;
  for (const Line& each : draw(made_up(), other, 24, 200).lines)
    for (const Span& span : each) is_bad = is_bad || (span.style == Style::kBad && contains(span.text, "7"));
  CHECK(is_bad);
}

TEST_CASE("watch: a chunk's mark is as high as its updates, and coloured by its retries") {
  ViewState view;
  const Screenful screen = draw_page(made_up(), view, Page::kChunks);
  const auto line = std::find_if(screen.lines.begin(), screen.lines.end(),
                                 [](const Line& each) { return text_of(each).ends_with("0 █▅·█"); });
  REQUIRE(line != screen.lines.end());
  std::vector<Style> styles;
  for (const Span& span : *line) styles.push_back(span.style);
  CHECK(styles == std::vector{Style::kDim, Style::kCool, Style::kWarn, Style::kDim, Style::kBad});
}

TEST_CASE("watch: a plain line has the step, the workers and what is wrong") {
  const std::string line = plain_line(made_up());
  for (const char* part :
       {"live", "step 1234 of 5000", "3 of 3 workers", "loss 0.25", "! worker 2 (process 102) has been stopped",
        "\n  table items: 500 of 1000 rows", "\n  bridge of box 1 of 3   round 12"})
    CHECK_MESSAGE(contains(line, part), part);
  CHECK(line.back() == '\n');
}

TEST_CASE("watch: rates are of the last seconds, and there are none for counts that were reset") {
  Rates rates(2.0);
  CHECK(rates.per_second(0) == 0);
  for (int i = 0; i <= 10; ++i) rates.add(i, {std::uint64_t(i < 8 ? 0 : (i - 8) * 100)});
  CHECK(rates.per_second(0) == doctest::Approx(100));
  rates.add(11, {5});
  CHECK(rates.per_second(0) == 0);
  rates.add(12, {5, 6});
  CHECK(rates.per_second(1) == 0);
}

TEST_CASE("watch: a history keeps its shape in bounded memory") {
  History history;
  for (int i = 0; i < 100000; ++i) history.add(i);
  REQUIRE(history.values().size() < History::kMost);
  REQUIRE(history.values().size() >= History::kMost / 2 - 1);
  CHECK(history.values().front() < history.values().back());
  CHECK(std::is_sorted(history.values().begin(), history.values().end()));
}

TEST_CASE("watch: a sparkline shows minimum, maximum and NaN") {
  CHECK(sparkline({0, 1, 2, NAN}, 10, true) == "▁▅█ ");
  CHECK(sparkline({1, 1}, 10, false) == "..");
  CHECK(sparkline({}, 10, true).empty());
  CHECK(sparkline({0, 0, 4, 4}, 2, true) == "▁█");
}

TEST_CASE("watch: a loop's phase follows from its words and from how many pulls a step has") {
  PhaseWatch watch;
  RankLook rank;
  rank.state = WorkerState::kAlive, rank.holders = 1;
  double now = 0;
  const auto look = [&] {
    watch.look(now += 0.01, rank);
    return watch.phase();
  };
  std::vector<Phase> seen;
  for (int step = 0; step < 30; ++step) {  // two pulls, computing, a push, a step
    seen = {look()};
    for (int pull = 0; pull < 2; ++pull) ++rank.pulls, seen.push_back(look());
    rank.is_pushing = true;
    seen.push_back(look());
    rank.is_pushing = false, ++rank.pushes, ++rank.steps;
  }
  CHECK(seen == std::vector{Phase::kPulling, Phase::kPulling, Phase::kComputing, Phase::kPushing});
  const auto shares = watch.take_shares();
  CHECK(shares[static_cast<std::size_t>(Phase::kPushing)] == doctest::Approx(0.25));
  CHECK(shares[static_cast<std::size_t>(Phase::kPulling)] > 0.4);  // at first the number of pulls per step was unknown
}

TEST_CASE("watch: a wait lasts from its first sample, and one that began before that is marked as at least so long") {
  PhaseWatch watch;
  RankLook rank;
  rank.state = WorkerState::kAlive, rank.holders = 1;
  rank.waiting = shm::WaitingFor::kStep, rank.waiting_on = 7;
  watch.look(10, rank), watch.look(12, rank);
  CHECK(watch.phase() == Phase::kWaiting);
  CHECK(watch.phase_seconds(13) == doctest::Approx(3));
  CHECK(watch.is_since_before());
  rank.waiting_on = 8, ++rank.steps;
  watch.look(14, rank), watch.look(15, rank);
  CHECK(watch.phase_seconds(15) == doctest::Approx(1));
  CHECK_FALSE(watch.is_since_before());
  CHECK(watch.silent_seconds(15) == doctest::Approx(1));
}

namespace {

struct Hand {
  ViewState view;
  Model model = made_up();
  std::vector<std::string> done;
  std::string failure;
  Keys keys{view,
            {.change =
                 [this](const std::string& change) {
                   if (!failure.empty()) throw Error(failure);
                   done.push_back("change " + change);
                   return std::string("changed");
                 },
             .ask_to_end = [](std::uint32_t rank) { return "end worker " + std::to_string(rank); },
             .end =
                 [this](std::uint32_t rank, bool at_once) {
                   done.push_back((at_once ? "kill " : "end ") + std::to_string(rank));
                   return std::string("sent");
                 }}};

  bool press(Key key, char text = 0) {
    const Screenful screen = draw(model, view, 24, 120);
    return keys.press({key, text}, model, screen);
  }
  void type(const std::string& text) {
    for (const char c : text) press(Key::kText, c);
  }
};

}  // namespace

TEST_CASE("watch: keys change pages, select a variable, and q quits") {
  Hand hand;
  hand.type("3");
  CHECK(hand.view.page == Page::kVariables);
  hand.press(Key::kDown), hand.press(Key::kEnter);
  CHECK(hand.view.page == Page::kChunks);
  CHECK(hand.keys.chosen() == 1);
  hand.type("><<");
  CHECK(hand.keys.chosen() == 0);
  hand.press(Key::kTab);
  CHECK(hand.view.page == Page::kRows);
  CHECK_FALSE(hand.press(Key::kText, 'q'));
}

TEST_CASE("watch: a question mark explains every key until the next one is pressed") {
  Hand hand;
  hand.type("2?");
  for (const std::size_t columns : {120, 80, 30}) {
    const std::string text = all_of(draw(hand.model, hand.view, 60, columns));
    for (const char* part : {"quit", "reverse the order", "!  "}) CHECK_MESSAGE(contains(text, part), part);
    CHECK_FALSE(contains(text, "RANK"));
  }
  hand.type("3");
  CHECK(hand.view.page == Page::kWorkers);
  CHECK(contains(all_of(draw(hand.model, hand.view, 24, 120)), "RANK"));
  hand.type("?");
  CHECK_FALSE(hand.press(Key::kText, 'q'));
}

TEST_CASE("watch: a setting is changed only after a yes, and the outcome is shown") {
  Hand hand;
  hand.type("clr=0.5");
  CHECK(contains(hand.view.prompt, "lr=0.5"));
  hand.press(Key::kEnter);
  CHECK(contains(hand.view.prompt, "set lr=0.5?"));
  CHECK(hand.done.empty());
  hand.type("n");
  CHECK(hand.done.empty());
  CHECK(hand.view.message == "nothing was done");
  hand.type("cquorum=2"), hand.press(Key::kEnter), hand.type("y");
  CHECK(hand.done == std::vector<std::string>{"change quorum=2"});
  CHECK(hand.view.message == "changed");
  hand.failure = "cannot";
  hand.type("clr=x"), hand.press(Key::kBackspace), hand.press(Key::kEnter), hand.type("y");
  CHECK(hand.view.message == "cannot");
}

TEST_CASE("watch: a worker is ended only from its page, and after an answer that says how") {
  Hand hand;
  hand.type("x");
  CHECK(contains(hand.view.message, "page 2"));
  hand.type("2"), hand.press(Key::kDown), hand.type("x");
  CHECK(contains(hand.view.prompt, "end worker 1?"));
  hand.press(Key::kEscape), hand.type("t");
  CHECK(hand.done.empty());
  hand.type("xyxt"), hand.press(Key::kDown), hand.type("xk");
  CHECK(hand.done == std::vector<std::string>{"end 1", "kill 2"});
}

TEST_CASE("watch: the events stay at their end until the user scrolls away from it") {
  Hand hand;
  for (int i = 0; i < 50; ++i) {
    Event& event = hand.model.events.emplace_back();
    event.kind = "decided", event.text = "number " + std::to_string(i);
  }
  hand.type("6");
  CHECK(contains(all_of(draw(hand.model, hand.view, 24, 120)), "number 49"));
  hand.model.events.emplace_back().text = "one more";
  CHECK(contains(all_of(draw(hand.model, hand.view, 24, 120)), "one more"));
  hand.press(Key::kHome);
  CHECK_FALSE(contains(all_of(draw(hand.model, hand.view, 24, 120)), "one more"));
  hand.press(Key::kEnd);
  CHECK(hand.view.here().selected == kLast);
}
