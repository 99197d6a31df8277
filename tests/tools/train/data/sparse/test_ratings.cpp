#include "train/data/sparse/ratings.hpp"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include "support/sparse_texts.hpp"

namespace {

using namespace ps_shm;
using namespace ps_shm::test;
using train::SparseData;
using train::SparseInfo;
using train::SparseKind;
using train::SparseSourceOptions;

SparseSourceOptions ratings() {
  SparseSourceOptions options;
  options.format = SparseSourceOptions::Format::kRatings;
  return options;
}

PlainExample rated(float rating, std::uint32_t user, std::uint32_t item) { return {rating, {user, item}, {1, 1}}; }

}  // namespace

TEST_CASE("ratings: every separator gives the same examples, with and without times") {
  const std::vector<PlainExample> expected = {rated(5, 0, 2), rated(2.5F, 1, 2), rated(-1, 0, 3)};
  const char* const texts[] = {
      "7::10::5::978300760\n3::10::2.5::978300761\n7::11::-1::0\n",
      "7\t10\t5\t978300760\n3\t10\t2.5\t978300761\n7\t11\t-1\t0",
      "7,10,5\r\n3,10,2.5\r\n7,11,-1\r\n",
      "7 10 5\n\n 3   10 2.5 \n7 11 -1\n",
      "userId,movieId,rating,timestamp\n7,10,5.0,1\n3,10,+2.5,2\n7,11,-1,3\n",
      "user_id\titem_id\trating\n7\t10\t5\n3\t10\t2.5\n7\t11\t-1\n",
      "7 , 10 , 5\n3,10 ,2.5\n7, 11,-1\n",
      ("\xEF\xBB\xBF"
       "7;x,10,5\n3,10,2.5\n7;x,11,-1\n"),
  };
  for (const char* text : texts) {
    CAPTURE(text);
    const SparseData data = parse(text);
    CHECK(data.info().kind == SparseKind::kRatings);
    CHECK(examples_of(data) == expected);
    CHECK(data.info().users == 2);
    CHECK(data.info().items == 2);
    CHECK(data.info().features == 4);
  }
}

TEST_CASE("ratings: users and items are any text, numbered in the order of their first appearance") {
  const std::string longest(64, 'u');
  const SparseData data =
      parse(longest + ",item one,1\n9223372036854775808,\xc3\xa9,2\n" + longest + ",\xc3\xa9,3\n7,7,4\n07,7,5\n");
  CHECK(data.info().users == 4);  // 7 and 07 are two users
  CHECK(data.info().items == 3);
  CHECK(examples_of(data) ==
        std::vector<PlainExample>{rated(1, 0, 4), rated(2, 1, 5), rated(3, 0, 5), rated(4, 2, 6), rated(5, 3, 6)});
}

TEST_CASE("ratings: other data uses the ids of these users and items, and two more for unknown ones") {
  const SparseData known = parse("7,10,5\n3,10,2.5\n7,11,-1\n");
  CHECK(known.names() == std::vector<std::string_view>{"7", "3", "10", "11"});
  SparseSourceOptions options = ratings();
  options.names_of = &known;
  CHECK(examples_of(parse("7,10,5\n3,10,2.5\n7,11,-1\n", options)) == examples_of(known));
  const SparseData found = parse("3::11::1\n3::7::2\n10::11::3\nnew::nothing::4\n", options);
  CHECK(examples_of(found) ==
        std::vector<PlainExample>{rated(1, 1, 3), rated(2, 1, 5), rated(3, 3, 4), rated(4, 4, 5)});
  CHECK(found.info().users == 2);
  CHECK(found.info().items == 2);
  CHECK(found.info().features == 6);
  CHECK(found.names().empty());
}

TEST_CASE(
    "ratings: keyed data has the hashes of names, which are those of other files, and of users and items differ") {
  SparseSourceOptions options = ratings();
  options.keyed = true;
  const SparseData data = parse("7,7,5\nx y,7,2.5\n", options);
  CHECK(data.info().kind == SparseKind::kRatings);
  CHECK(data.info().has_keys == 1);
  CHECK(data.names().empty());
  std::vector<std::uint64_t> keys;
  train::for_each_example(data, {}, [&](const train::SparseExample& example) {
    REQUIRE(example.keys.size() == 2);
    keys.insert(keys.end(), example.keys.begin(), example.keys.end());
  });
  // XXH3_64bits_withSeed(name, 1 or 2)
  CHECK(keys == std::vector<std::uint64_t>{3955362362897279387U, 9990973313526057764U, 3573564797859760815U,
                                           9990973313526057764U});
  CHECK(error_of([&] { parse("7,,5\n", options); }).find("data:1:3: the item is empty") == 0);
}

TEST_CASE("ratings: names of up to 64 bytes are read back, however many there are") {
  std::string text;
  std::vector<std::string> users;
  for (int i = 0; i < 30000; ++i) users.push_back(std::string(std::size_t(i % 59), 'u') + std::to_string(i));
  for (const std::string& user : users) text += user + ",one,1\n";
  const SparseData data = parse(text);
  const std::vector<std::string_view> names = data.names();
  REQUIRE(names.size() == users.size() + 1);
  CHECK(std::equal(users.begin(), users.end(), names.begin()));
  CHECK(names.back() == "one");
  CHECK(examples_of(data).size() == users.size());
}

TEST_CASE("ratings: synthetic data has no names to match other data's users and items") {
  const SparseData made_up = SparseData::read("ratings:10x10x50", {});
  const SparseData known = parse("1,2,3\n");
  SparseSourceOptions options = ratings();
  options.names_of = &made_up;
  CHECK(error_of([&] {
          parse("1,2,3\n", options);
        }).find("ratings:10x10x50: synthetic users and items have no names") == 0);
  options.names_of = &known;
  CHECK(error_of([&] {
          SparseData::read("ratings:10x10x50", options);
        }).find("ratings:10x10x50: synthetic users and items have no names") == 0);
}

TEST_CASE("ratings: malformed text is one error with file, line and column") {
  struct Malformed {
    std::string text;
    const char* message;
  };
  const std::string too_long(65, 'u');
  const Malformed cases[] = {
      {"1::2\n",
       "data:1:5: the rating is missing; expected user, item, rating and optional time, with '::' between them"},
      {"1\n", "data:1:2: the item is missing"},
      {"1 2 3\n1,2,3\n", "data:2:6: the item is missing; expected user, item, rating and optional time, with blanks"},
      {"1,2,3\n1\t2\t3\n", "data:2:6: the item is missing"},
      {"1\t2\t3\n1 2 3\n", "data:2:6: the item is missing; expected user, item, rating and optional time, with tabs"},
      {"1,2,3,4,5\n", "data:1:9: a fifth field"},
      {"1::2::3::4::5::6\n", "data:1:13: a fifth field"},
      {"1,2,x\n", "data:1:5: rating 'x' is not a number"},
      {"1,2,3\nuserId,movieId,rating\n", "data:2:16: rating 'rating' is not a number"},
      {"1,2,\n", "data:1:5: the rating is empty"},
      {",2,3\n", "data:1:1: the user is empty"},
      {"1,,3\n", "data:1:3: the item is empty"},
      {"1,2,nan\n", "data:1:5: rating 'nan' is not finite"},
      {"1,2,inf\n", "data:1:5: rating 'inf' is not finite"},
      {"1,2,1e39\n", "data:1:5: rating '1e39' is too large"},
      {"1,2,3,yesterday\n", "data:1:7: time 'yesterday' is not a number"},
      {"1,2,3,\n", "data:1:7: the time is empty"},
      {too_long + ",2,3\n", "data:1:1: user 'uuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuu...' is longer than 64 bytes"},
      {"1," + too_long + ",3\n", "data:1:3: item 'uuu"},
      {std::string("1,\0,3\n", 6), "data:1:3: control byte 0x00"},
      {"1,2,3\r4,5,6\n", "data:1:6: control byte 0x0d"},
      {"userId,movieId,rating\n", "data: it has no examples"},
      {"user item rating\n1 2 3\n", "data:1:11: rating 'rating' is not a number"},
      {"\n \n", "data: it has no examples"},
  };
  for (const Malformed& one : cases) {
    CAPTURE(one.text);
    const std::string found = error_of([&] { parse(one.text, ratings()); });
    CAPTURE(found);
    CHECK(found.find(one.message) == 0);
    CHECK(found.find('\n') == std::string::npos);
  }
}

TEST_CASE("ratings: they are told apart from LIBSVM text by the first line that is neither blank nor a comment") {
  for (const char* text :
       {"1::2::3\n", "1,2,3\n", "1\t2\t3\t4\n", "1 2 3\n", "\n1 2 3\n", "a,b,c,d\n1,2,3,4\n", "# x:y\n1,2,3\n"}) {
    CAPTURE(text);
    CHECK(parse(text).info().kind == SparseKind::kRatings);
  }
  for (const char* text :
       {"1\n", "1 1:2\n", "1 1:2 2:3\n", "1 qid:3 2:3\n", "1 # 2 3\n", "# 1 2 3\n1 1:1\n", "+1 \n"}) {
    CAPTURE(text);
    CHECK(parse(text).info().kind == SparseKind::kFeatures);
  }
}
