#include "train/data/sparse/libsvm.hpp"

#include <archive.h>
#include <archive_entry.h>

#include <clocale>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "support/sparse_texts.hpp"

namespace {

using namespace ps_shm;
using namespace ps_shm::test;
using train::FirstIndex;
using train::SparseData;
using train::SparseInfo;
using train::SparseKind;
using train::SparseSourceOptions;

SparseSourceOptions libsvm(FirstIndex first_index = FirstIndex::kByContent, std::uint32_t hash_bits = 0) {
  SparseSourceOptions options;
  options.format = SparseSourceOptions::Format::kLibsvm;
  options.first_index = first_index;
  options.hash_bits = hash_bits;
  return options;
}

}  // namespace

TEST_CASE("libsvm: everything that the format allows is read") {
  struct Allowed {
    const char* text;
    std::vector<PlainExample> examples;
  };
  const Allowed cases[] = {
      {"1 1:0.5 3:2\n", {{1, {0, 2}, {0.5F, 2}}}},
      {"+1 1:+0.5 3:-2e3\n-1 2:.25", {{1, {0, 2}, {0.5F, -2000}}, {-1, {1}, {0.25F}}}},
      {"1 1:1 \r\n-1\t2:1\t\r\n", {{1, {0}, {1}}, {-1, {1}, {1}}}},
      {"# a comment\n\n  \t\n1 1:1 # 7:x \x01\n\r\n1.5#\n", {{1, {0}, {1}}, {1.5F, {}, {}}}},
      {"  1  qid:18446744073709551615  1:1\n2 qid:0\n", {{1, {0}, {1}}, {2, {}, {}}}},
      {"1 5:1\n0 0:3 2:1\n1 4294967295:1\n", {{1, {5}, {1}}, {0, {0, 2}, {3, 1}}, {1, {4294967295U}, {1}}}},
      {"1 1:1e-60 2:1e-400 3:0 4:1e-40\n", {{1, {0, 1, 2, 3}, {0, 0, 0, 1e-40F}}}},
      {"1\n0\n", {{1, {}, {}}, {0, {}, {}}}},
      {"1 007:1\n", {{1, {6}, {1}}}},
      {"1 3:1 63: .50 64:\t+1 65:2\n", {{1, {2, 62, 63, 64}, {1, 0.5F, 1, 2}}}},  // as svm-train reads it
      {"\xEF\xBB\xBF"
       "1 1:1\n",
       {{1, {0}, {1}}}},
  };
  for (const Allowed& one : cases) {
    CAPTURE(one.text);
    CHECK(examples_of(parse(one.text, libsvm())) == one.examples);
  }
}

TEST_CASE("libsvm: numbers beyond a float are 0 or an error, by their size, in every locale") {
  const Folder folder;
  const std::string source =
                        folder.write("comma", "LC_NUMERIC\ndecimal_point \",\"\nthousands_sep \"\"\nEND LC_NUMERIC\n"),
                    path = folder.path("ps_COMMA"),
                    command = "localedef --no-archive -c -i " + source + " " + path + " >/dev/null 2>&1";
  const bool has_locale = std::system(command.c_str()) != -1 && std::filesystem::exists(path + "/LC_NUMERIC");
  if (!has_locale) MESSAGE("in the C locale only: there is no localedef");
  setenv("LOCPATH", folder.path().c_str(), 1);
  for (const char* locale : {"C", has_locale ? "ps_COMMA" : "C"}) {
    REQUIRE(std::setlocale(LC_NUMERIC, locale) != nullptr);
    for (const char* large :
         {"0.1e40", "0.00001e44", "3.5e38", "1e99999999999999999999", "1000e36", "0.0001e500", "-1e+400"}) {
      CAPTURE(large);
      CHECK(error_of([&] { parse(std::string("1 1:") + large, libsvm()); }).find("is too large") != std::string::npos);
    }
    for (const char* small : {"0.1e-60", "1e-400", "1e-99999999999999999999", "1000e-60", "0.0001e-500", "-1e-46"}) {
      CAPTURE(small);
      CHECK(examples_of(parse(std::string("1 1:") + small, libsvm()))[0].values[0] == 0);
    }
    CHECK(examples_of(parse("1 1:1.5e-45", libsvm()))[0].values[0] == 1.5e-45F);
    CHECK(examples_of(parse("1 1:0.5", libsvm()))[0].values[0] == 0.5F);
  }
  std::setlocale(LC_NUMERIC, "C");
  unsetenv("LOCPATH");
}

TEST_CASE("libsvm: malformed text is one error with file, line and column") {
  struct Malformed {
    std::string text;
    const char* message;
    SparseSourceOptions options = libsvm();
  };
  const auto one_based = libsvm(FirstIndex::kOne);
  const Malformed cases[] = {
      {"1 1:1\nx 1:1\n", "data:2:1: label 'x' is not a number"},
      {"1 1:1\n  1x 1:1\n", "data:2:3: label '1x' is not a number"},
      {"+-1 1:1", "data:1:1: label '+-1' is not a number"},
      {"1,2 1:1", "data:1:1: label '1,2' is not a number"},
      {"0x1 1:1", "data:1:1: label '0x1' is not a number"},
      {"nan 1:1", "data:1:1: label 'nan' is not finite"},
      {"-inf 1:1", "data:1:1: label '-inf' is not finite"},
      {"1e39 1:1", "data:1:1: label '1e39' is too large for a 32-bit float"},
      {"1:1 2:1", "data:1:1: the label is missing: the line begins with '1:1'"},
      {"qid:1 2:1", "data:1:1: the label is missing"},
      {"1 2", "data:1:3: '2' has no colon; a feature is index:value"},
      {"1 1:1  foo 3:1", "data:1:8: 'foo' has no colon"},
      {"1 1 :2", "data:1:3: '1' has no colon"},
      {"1 :2", "data:1:3: index '' is not a number"},
      {"1 x:2", "data:1:3: index 'x' is not a number"},
      {"1 1.5:2", "data:1:3: index '1.5' is not a number"},
      {"1 +1:2", "data:1:3: index '+1' is not a number"},
      {"1 -:2", "data:1:3: index '-' is not a number"},
      {"1 -1:2", "data:1:3: index '-1' is negative"},
      {"1 4294967296:2", "data:1:3: index 4294967296 is 2^32 or more; hash the features (`hash-bits`)"},
      {"1 18446744073709551616:2", "data:1:3: index '18446744073709551616' is too large, even for hashing"},
      {"1 18446744073709551616:2", "data:1:3: index '18446744073709551616' is too large",
       libsvm(FirstIndex::kByContent, 8)},
      {"1 3:1 2:1", "data:1:7: index 2 comes after 3; indices must ascend"},
      {"1 3:1 3:1", "data:1:7: index 3 is repeated"},
      {"1 3:1 3:1", "data:1:7: index 3 is repeated", libsvm(FirstIndex::kByContent, 1)},
      {"1 0:1", "data:1:3: index 0 in a file whose indices begin with 1", one_based},
      {"1 1:", "data:1:5: value '' is not a number"},
      {"1 1: ", "data:1:6: value '' is not a number"},
      {"1 1: 2:3", "data:1:6: value '2:3' is not a number"},
      {"1 1:x", "data:1:5: value 'x' is not a number"},
      {"1 1:2:3", "data:1:3: '1:2:3' has two colons: that is a feature of libffm, field:index:value; remove the fields"},
      {"1 1:1,5", "data:1:5: value '1,5' is not a number"},
      {"1 1:NaN", "data:1:5: value 'NaN' is not finite"},
      {"1 1:infinity", "data:1:5: value 'infinity' is not finite"},
      {"1 1:-3.5e38", "data:1:5: value '-3.5e38' is too large"},
      {"1 1:1e400", "data:1:5: value '1e400' is too large"},
      {"1 qid:x 1:1", "data:1:3: 'qid:x' is not a query id; expected qid:NUMBER"},
      {"1 qid: 1:1", "data:1:3: 'qid:' is not a query id"},
      {"1 qid:-1 1:1", "data:1:3: 'qid:-1' is not a query id"},
      {"1 1:1 qid:1", "data:1:7: index 'qid' is not a number"},
      {std::string("1 1:1\0 2:1", 10), "data:1:6: control byte 0x00"},
      {std::string("\0", 1), "data:1:1: control byte 0x00"},
      {"1\x07 1:1", "data:1:2: control byte 0x07"},
      {"1 1:1\v2:1", "data:1:6: control byte 0x0b"},
      {"1 1:1\r2 1:1\n", "data:1:6: control byte 0x0d"},
      {"1 1\x7f:1", "data:1:4: control byte 0x7f"},
      {"1 1:\xc3\xa9", "data:1:5: value '\\xc3\\xa9' is not a number"},
      {"1 1:" + std::string(100, '9') + "x", "data:1:5: value '9999999999999999999999999999999999999999...' is not a"},
      {"", "data: it has no examples"},
      {"# nothing\n\n", "data: it has no examples"},
  };
  for (const Malformed& one : cases) {
    CAPTURE(one.text);
    const std::string found = error_of([&] { parse(one.text, one.options); });
    CAPTURE(found);
    CHECK(found.find(one.message) == 0);
    CHECK(found.find('\n') == std::string::npos);
    CHECK(found.size() < 200);
  }
}

TEST_CASE("libsvm: a line that is too long is an error, one just within the limit is read") {
  const std::string row = "1 1:1 2:1";
  const std::string blanks(train::kMaxLineBytes - row.size(), ' ');
  CHECK(parse(row + blanks + "\n", libsvm()).info().nonzeros == 2);
  CHECK(error_of([&] { parse("1\n" + row + blanks + " \n", libsvm()); }).find("data:2:16777217: the line is longer") ==
        0);
}

TEST_CASE("libsvm: indices start at 0 if a 0 occurs, however late, otherwise at 1") {
  std::string text;
  for (int row = 0; row < 300'000; ++row) text += "1 1:1 2:1\n";  // more than the writer keeps in memory
  const SparseInfo one = parse(text, libsvm()).info();
  CHECK(one.first_index == FirstIndex::kOne);
  CHECK(one.features == 2);
  text += "1 0:1\n";
  const SparseData zero = parse(text, libsvm());
  CHECK(zero.info().first_index == FirstIndex::kZero);
  CHECK(zero.info().features == 3);
  CHECK(zero.occurrences()[0] == 1);
  CHECK(zero.occurrences()[1] == 300'000);
  CHECK(zero.occurrences()[2] == 300'000);
}

TEST_CASE("libsvm: a test set has its training set's first index and features") {
  const SparseInfo training = parse("1 0:1 9:1\n", libsvm()).info();
  SparseSourceOptions options = libsvm(training.first_index);
  options.features = training.features;
  const SparseData test = parse("1 3:1\n", options);
  CHECK(test.info().features == 10);
  CHECK(examples_of(test) == std::vector<PlainExample>{{1, {3}, {1}}});
  options.first_index = FirstIndex::kOne;
  CHECK(parse("1 11:1\n", options).info().features == 11);
}

TEST_CASE("libsvm: hashed ids ascend, colliding ones are added up, and the number of features is the table's") {
  const SparseData data = parse("1 1:1 6:2 9:4 18446744073709551615:8\n", libsvm(FirstIndex::kByContent, 2));
  CHECK(data.info().features == 4);
  CHECK(data.info().first_index == FirstIndex::kZero);
  CHECK(data.info().nonzeros == 3);
  CHECK(examples_of(data) == std::vector<PlainExample>{{1, {1, 2, 3}, {5, 2, 8}}});
  CHECK(examples_of(parse("1 1:1 6:2\n", libsvm(FirstIndex::kOne, 2))) ==
        std::vector<PlainExample>{{1, {0, 1}, {1, 2}}});
  CHECK(parse("1 5:1\n", libsvm(FirstIndex::kByContent, 32)).info().features == std::uint64_t{1} << 32);
  CHECK(error_of([] { parse("1 1:1\n", libsvm(FirstIndex::kByContent, 33)); }).find("at most 32 bits") !=
        std::string::npos);
  CHECK(error_of([] {
          parse("1 1:3e38 3:3e38\n", libsvm(FirstIndex::kByContent, 1));
        }).find("data:1:1: the sum of values of one feature") == 0);
}

TEST_CASE("libsvm: keys are any 64-bit numbers in any order, and those that repeat in a line are added up") {
  SparseSourceOptions options = libsvm();
  options.keyed = true;
  const SparseData data = parse("1 18446744073709551615:1 0:2 7:3 0:0.5\n-1\n-1 4294967296:4\n1 1:1 2:2\n", options);
  CHECK(data.info().has_keys == 1);
  CHECK(data.info().examples == 4);
  CHECK(data.info().nonzeros == 6);
  CHECK(data.info().features == 0);
  CHECK(data.occurrences().empty());
  const std::vector<std::vector<std::uint64_t>> keys = {{0, 7, ~0ULL}, {}, {4294967296}, {1, 2}};
  const std::vector<std::vector<float>> values = {{2.5F, 3, 1}, {}, {4}, {1, 2}};
  std::size_t at = 0;
  train::for_each_example(data, {}, [&](const train::SparseExample& example) {
    REQUIRE(at < keys.size());
    CHECK(example.ids.empty());
    CHECK(std::vector(example.keys.begin(), example.keys.end()) == keys[at]);
    CHECK(std::vector(example.values.begin(), example.values.end()) == values[at++]);
  });
  CHECK(at == keys.size());
  CHECK(error_of([&] { parse("1 1:3e38 1:3e38\n", options); }).find("data:1:1: the sum of values of one feature") == 0);
  CHECK(error_of([&] { parse("1 18446744073709551616:1\n", options); }).find("more than 64 bits") != std::string::npos);
}

TEST_CASE("libsvm: sizes and labels are counted") {
  const SparseInfo info = parse("2 1:1\n-1 1:1 7:1\n2\n0.5 2:1\n", libsvm()).info();
  CHECK(info.kind == SparseKind::kFeatures);
  CHECK(info.examples == 4);
  CHECK(info.nonzeros == 4);
  CHECK(info.features == 7);
  CHECK(info.label_min == -1.0F);
  CHECK(info.label_max == 2.0F);
  CHECK(info.label_sum == 3.5);
  CHECK(info.distinct_labels == 3);
  CHECK(parse("1\n1\n", libsvm()).info().distinct_labels == 1);
  CHECK(parse("1\n0\n1\n", libsvm()).info().distinct_labels == 2);
  CHECK(parse("1 1:1\n", libsvm()).occurrences().size() == 1);
}

TEST_CASE("libsvm: more features than can be counted are an error") {
  const SparseData data = parse("1 4294967295:1\n", libsvm());
  CHECK(data.info().features == 4294967295U);
  CHECK(error_of([&] { data.occurrences(); }).find("too many to count") != std::string::npos);
}

TEST_CASE("libsvm: files are read plain and gzip, whatever their names") {
  const Folder folder;
  std::string text;
  for (int row = 1; row <= 200'000; ++row)
    text += std::to_string(row % 2) + " 3:1 " + std::to_string(row + 3) + ":0.5\n";
  const auto expected = examples_of(parse(text));
  CHECK(examples_of(SparseData::read(folder.write("plain", text), {})) == expected);
  CHECK(examples_of(SparseData::read(folder.write_gz("packed", text), {})) == expected);
}

namespace {

using AddFilter = int (*)(archive*);
struct Compressed {
  const char* name;
  AddFilter add_filter;
};
constexpr Compressed kCompressed[] = {{"bzip2", archive_write_add_filter_bzip2},
                                      {"xz", archive_write_add_filter_xz},
                                      {"zstd", archive_write_add_filter_zstd}};

std::string compressed(std::string_view text, AddFilter add_filter) {
  std::string out(2 * text.size() + 1024, '\0');
  std::size_t used = 0;
  archive* const packing = archive_write_new();
  archive_entry* const entry = archive_entry_new();
  archive_write_set_format_raw(packing);
  add_filter(packing);
  archive_write_set_bytes_per_block(packing, 0);
  archive_write_open_memory(packing, out.data(), out.size(), &used);
  archive_entry_set_filetype(entry, AE_IFREG);
  REQUIRE(archive_write_header(packing, entry) == ARCHIVE_OK);
  REQUIRE(archive_write_data(packing, text.data(), text.size()) == static_cast<la_ssize_t>(text.size()));
  REQUIRE(archive_write_close(packing) == ARCHIVE_OK);
  archive_entry_free(entry);
  archive_write_free(packing);
  return out.substr(0, used);
}

}  // namespace

TEST_CASE("libsvm: files compressed by bzip2, xz and zstd are read, whatever their names, and of several streams") {
  const Folder folder;
  std::string half;
  for (int row = 1; row <= 20'000; ++row)
    half += std::to_string(row % 2) + " 3:1 " + std::to_string(row + 3) + ":0.5\n";
  const auto expected = examples_of(parse(half + half));
  for (const Compressed& one : kCompressed) {
    CAPTURE(one.name);
    const std::string stream = compressed(half, one.add_filter);
    REQUIRE(stream.size() < half.size() / 2);
    CHECK(examples_of(SparseData::read(folder.write("packed", stream + stream), {})) == expected);
    const std::string empty = folder.write("empty", compressed("", one.add_filter));
    CHECK(error_of([&] { SparseData::read(empty, {}); }) ==
          empty + ": it has no examples; expected LIBSVM text or ratings");
  }
}

TEST_CASE("libsvm: damaged and truncated data of each compression is an error that names it") {
  const Folder folder;
  std::string text;
  for (int row = 1; row <= 20'000; ++row) text += "1 " + std::to_string(row * 7919 % 10'007 + 1) + ":1\n";
  for (const Compressed& one : kCompressed) {
    CAPTURE(one.name);
    const std::string whole = compressed(text, one.add_filter);
    std::string changed = whole;
    changed.replace(whole.size() / 2, 12, 12, '\xff');
    for (const std::string& wrong :
         {whole.substr(0, whole.size() - 1), whole.substr(0, whole.size() / 2), whole.substr(0, 20), changed}) {
      CAPTURE(wrong.size());
      const std::string path = folder.write("packed", wrong);
      const std::string found = error_of([&] { SparseData::read(path, {}); });
      CAPTURE(found);
      CHECK(found.find(path + ":") == 0);
      CHECK(found.find(std::string("damaged or truncated ") + one.name + " data here or soon after") != found.npos);
      CHECK(found.find('\n') == found.npos);
    }
  }
}

TEST_CASE("sparse data: the reader that was asked for reports what the file seems to be") {
  struct Foreign {
    std::string text;
    const char *libsvm, *ratings, *seems;
  };
  const Foreign cases[] = {
      {"<!DOCTYPE html>\n<html>\n", "label '<!DOCTYPE' is not a number", "the rating is missing",
       "an HTML or XML page"},
      {"\"user\",\"item\",\"rating\"\n\"1\",\"2\",\"3.5\"\n", "this looks like CSV", "rating '\"3.5\"' is not a number",
       "CSV with quotation marks; remove them"},
      {"\"1\";\"2\";\"3\"\n", "label", "the item is missing", "CSV with quotation marks; remove them"},
      {"{\"a\": 1}\n", "label", "the rating is missing", "JSON"},
      {"PK\x03\x04 1 2 3\n", "control byte 0x03", "control byte 0x03", "a ZIP archive; unpack it"},
      {"label,x,y\n1,2,z\n", "this looks like CSV", "rating 'z' is not a number", ""},
  };
  using Format = SparseSourceOptions::Format;
  for (const Foreign& one : cases) {
    CAPTURE(one.text);
    for (const bool is_rating : {false, true}) {
      const Format wanted = is_rating ? Format::kRatings : Format::kLibsvm;
      for (const bool is_given : {false, true}) {
        SparseSourceOptions options;
        (is_given ? options.format : options.otherwise) = wanted;
        const std::string found = error_of([&] { parse(one.text, options); });
        CAPTURE(found);
        CHECK(found.find(is_rating ? one.ratings : one.libsvm) != found.npos);
        CHECK((found.find("; the file seems to be ") != found.npos) == (*one.seems != '\0'));
        CHECK(found.find(one.seems) != found.npos);
        CHECK(found.find('\n') == found.npos);
      }
    }
  }
}

TEST_CASE("libsvm: damaged and truncated gzip data, and paths that are not files, are errors that name them") {
  const Folder folder;
  std::string text;
  for (int row = 1; row <= 50'000; ++row) text += "1 " + std::to_string(row * 7919 % 10'007 + 1) + ":1\n";
  const std::string path = folder.write_gz("data.gz", text);
  const auto size = std::filesystem::file_size(path);
  const auto reading = [](const std::string& file) { return error_of([&] { SparseData::read(file, {}); }); };
  std::filesystem::resize_file(path, size - 1);
  CHECK(reading(path).find(path + ":") == 0);
  CHECK(reading(path).find("the gzip data ends too early") != std::string::npos);
  std::filesystem::resize_file(path, size / 2);
  CHECK(reading(path).find("the gzip data ends too early") != std::string::npos);
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(size / 4));
    file.write("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 12);
  }
  CHECK(reading(path).find("gzip data") != std::string::npos);
  CHECK(reading(folder.path("missing")).find("missing: no such file") != std::string::npos);
  CHECK(reading(folder.path("")).find("not a regular file") != std::string::npos);
}

TEST_CASE("libsvm: reading stops on request") {
  const Folder folder;
  std::string text;
  for (int row = 0; row < 500'000; ++row) text += "1 1:1\n";
  SparseSourceOptions options;
  int looks = 0;
  options.stop_requested = [&] { return ++looks == 2; };
  CHECK_THROWS_AS(SparseData::read(folder.write("data", text), options), Interrupted);
}
