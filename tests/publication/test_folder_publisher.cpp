// Folders of safetensors files: what other programs find in them, files that are written again, and what a kill leaves.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "persistence/tensor_reader.hpp"
#include "ps_shm/errors.hpp"
#include "ps_shm/folder_publisher.hpp"
#include "support/folder.hpp"
#include "support/processes.hpp"

using namespace ps_shm;
using persistence::TensorFile;

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kElements = 3000;
const std::vector<TensorSpec> kTensors = {{.name = "odd", .dtype = DType::kUint8, .shape = {13}},
                                          {.name = "w", .shape = {3, kElements / 3}},
                                          {.name = "b", .dtype = DType::kBFloat16, .shape = {6}},
                                          {.name = "scalar", .dtype = DType::kInt64}};

// In memory, where files are written again.
struct MemoryFolder {
  MemoryFolder() { REQUIRE(mkdtemp(path.data()) != nullptr); }
  ~MemoryFolder() {
    std::error_code error;
    fs::remove_all(path, error);
  }
  std::string path = "/dev/shm/ps-test-XXXXXX";
};

bool writes_again(const std::string& folder) {
  struct statfs system {};
  constexpr auto kTmpfs = 0x01021994;
  if (statfs(folder.c_str(), &system) == 0 && system.f_type == kTmpfs) return true;
  MESSAGE("skipped: /dev/shm is not tmpfs");
  return false;
}

void fill(std::uint32_t tensor, std::span<std::byte> out, std::uint64_t generation) {
  std::memset(out.data(), static_cast<int>(generation * 10 + tensor), out.size());
}

std::uint64_t publish(FolderPublisher& publisher, std::uint64_t step = 0) {
  const std::uint64_t next = publisher.generation() + 1;
  return publisher.publish([&](std::uint32_t tensor, std::span<std::byte> out) { fill(tensor, out, next); }, step);
}

// The generation in a folder, of which every byte is checked.
std::uint64_t loaded(const std::string& folder) {
  const TensorFile file(folder + "/model.safetensors");
  const std::uint64_t generation = std::stoull(file.metadata().at("generation"));
  for (std::uint32_t tensor = 0; tensor < kTensors.size(); ++tensor) {
    const persistence::StoredTensor& stored = file.tensors().find(kTensors[tensor].name)->second;
    std::vector<std::byte> found(stored.bytes), wanted(kTensors[tensor].byte_count());
    file.read(stored, found);
    fill(tensor, wanted, generation);
    CHECK(found == wanted);
  }
  return generation;
}

ino_t inode(const std::string& folder) {
  struct stat status {};
  REQUIRE(stat((folder + "/model.safetensors").c_str(), &status) == 0);
  return status.st_ino;
}

std::vector<std::string> entries(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

// Maps the file of a generation and closes it, as loaders of safetensors do.
class Mapped {
 public:
  explicit Mapped(const std::string& folder) {
    const int file = open((folder + "/model.safetensors").c_str(), O_RDONLY | O_CLOEXEC);
    struct stat status {};
    REQUIRE(fstat(file, &status) == 0);
    size_ = static_cast<std::size_t>(status.st_size);
    bytes_ = static_cast<const char*>(mmap(nullptr, size_, PROT_READ, MAP_SHARED, file, 0));
    REQUIRE(bytes_ != MAP_FAILED);
    close(file);
  }
  ~Mapped() { munmap(const_cast<char*>(bytes_), size_); }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;

  std::string content() const { return {bytes_, size_}; }

 private:
  std::size_t size_ = 0;
  const char* bytes_ = nullptr;
};

// Runs `body` in a process that is killed behind its `number`-th system call. What others see of a publisher to a folder
// changes by system calls only.
enum class Ended { kKilled, kByItself, kNotTraced };
Ended run_until_call(int number, const std::function<void()>& body) {
  const pid_t pid = fork();
  if (pid == 0) {
    if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(1);
    raise(SIGSTOP);
    try {
      body();
      _exit(0);
    } catch (...) {
      _exit(2);
    }
  }
  int status = 0;
  REQUIRE(waitpid(pid, &status, 0) == pid);
  if (!WIFSTOPPED(status)) return Ended::kNotTraced;
  for (int stops = 0; WIFSTOPPED(status); ++stops) {  // two for each call
    if (stops == 2 * number) kill(pid, SIGKILL);
    ptrace(PTRACE_SYSCALL, pid, nullptr, nullptr);
    REQUIRE(waitpid(pid, &status, 0) == pid);
  }
  if (WIFSIGNALED(status)) return Ended::kKilled;
  CHECK(WEXITSTATUS(status) == 0);
  return Ended::kByItself;
}

ErrorCode code_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code();
  }
  return ErrorCode{};
}

}  // namespace

TEST_CASE("folder publisher: a generation is a folder with a file that any loader reads, and latest leads to it") {
  const test::Folder folder, others;
  others.write("config.json", "{}");
  others.write("model-00001-of-00002.safetensors", "");
  others.write("model.safetensors.index.json", "");
  others.write("tokenizer/vocab.txt", "a");
  FolderPublisher publisher(folder.path("weights") + "/", kTensors, {.static_files = others.path()});
  CHECK(publisher.generation() == 0);
  CHECK(publisher.path().empty());
  CHECK(publish(publisher, 40) == 1);
  CHECK(publish(publisher, 50) == 2);
  const std::string path = folder.path("weights/g00000002");
  CHECK(publisher.path() == path);
  CHECK(fs::read_symlink(folder.path("weights/latest")) == "g00000002");
  CHECK(loaded(folder.path("weights/latest")) == 2);
  CHECK(loaded(folder.path("weights/g00000001")) == 1);
  CHECK(entries(path) == std::vector<std::string>{"config.json", "model.safetensors", "tokenizer"});
  CHECK(fs::file_size(path + "/config.json") == 2);
  CHECK(fs::file_size(path + "/tokenizer/vocab.txt") == 1);
  const TensorFile file(path + "/model.safetensors");
  CHECK(file.metadata() == std::map<std::string, std::string>{{"format", "pt"}, {"generation", "2"}, {"step", "50"}});
  std::uint64_t data = ~0ULL, bytes = 0;
  for (const auto& [name, tensor] : file.tensors()) data = std::min(data, tensor.begin), bytes += tensor.bytes;
  CHECK(data == 4096);
  CHECK(fs::file_size(file.path()) == data + bytes);
  CHECK(file.tensors().find("w")->second.begin % 32 == 0);  // it has 12000 bytes
  CHECK(file.tensors().find("scalar")->second.begin % 8 == 0);
  CHECK(file.tensors().find("b")->second.begin % 4 == 0);
}

TEST_CASE("folder publisher: without readers two files are written in turns") {
  const MemoryFolder folder;
  if (!writes_again(folder.path)) return;
  FolderPublisher publisher(folder.path, kTensors);
  std::vector<ino_t> files;
  for (int i = 0; i < 6; ++i) {
    publish(publisher);
    files.push_back(inode(publisher.path()));
    CHECK(loaded(folder.path + "/latest") == publisher.generation());
  }
  CHECK(files[0] != files[1]);
  for (std::size_t i = 2; i < files.size(); ++i) CHECK(files[i] == files[i - 2]);
  CHECK(entries(folder.path) == std::vector<std::string>{".slots", "g00000005", "g00000006", "latest"});
  CHECK(entries(folder.path + "/.slots") == std::vector<std::string>{"0", "1"});
}

TEST_CASE(
    "folder publisher: a process that has a file mapped sees no byte of it change, and it is written again later") {
  const MemoryFolder folder;
  if (!writes_again(folder.path)) return;
  FolderPublisher publisher(folder.path, kTensors);
  publish(publisher);
  const test::Bell has_mapped, look;
  test::Child reader([&] {
    const Mapped mapped(folder.path + "/latest");
    const std::string content = mapped.content();
    has_mapped.tell();
    const bool heard = look.hear();
    return heard && mapped.content() == content ? 0 : 1;
  });
  REQUIRE(has_mapped.hear());
  const ino_t kept = inode(publisher.path());
  std::set<ino_t> files;
  for (int i = 0; i < 10; ++i) {
    publish(publisher);
    CHECK(loaded(folder.path + "/latest") == publisher.generation());
    files.insert(inode(publisher.path()));
  }
  CHECK_FALSE(files.contains(kept));
  CHECK(files.size() == 2);
  look.tell();
  CHECK(reader.join() == 0);
  SUBCASE("a reader with an open descriptor only") {
    const int file = open((publisher.path() + "/model.safetensors").c_str(), O_RDONLY | O_CLOEXEC);
    const ino_t opened = inode(publisher.path());
    publish(publisher), publish(publisher);
    CHECK(inode(publisher.path()) != opened);
    close(file);
  }
  SUBCASE("a link that a user has made") {
    fs::create_hard_link(publisher.path() + "/model.safetensors", folder.path + "/kept");
    const ino_t linked = inode(publisher.path());
    publish(publisher), publish(publisher);
    CHECK(inode(publisher.path()) != linked);
  }
}

TEST_CASE("folder publisher: a file that is opened while it is written again is not valid until it is complete") {
  const MemoryFolder folder;
  if (!writes_again(folder.path)) return;
  FolderPublisher publisher(folder.path, kTensors);
  publish(publisher);
  publish(publisher);
  FolderPublisher::Writing writing = publisher.begin();
  const std::string file = folder.path + "/.slots/0";  // as a process finds it that looked up its name earlier
  CHECK(code_of([&] { const TensorFile opened(file); }) != ErrorCode{});
  for (std::uint32_t tensor = 0; tensor < kTensors.size(); ++tensor) fill(tensor, writing.out(tensor), 3);
  CHECK(code_of([&] { const TensorFile opened(file); }) != ErrorCode{});
  CHECK(writing.commit() == 3);
  const TensorFile complete(file);
  CHECK(complete.metadata().at("generation") == "3");
}

TEST_CASE(
    "folder publisher: a generation in parts is visible when it is committed; the rest is that of the one before") {
  const test::Folder folder;
  FolderPublisher publisher(folder.path(), kTensors);
  const std::vector<std::byte> w(kElements * 4, std::byte{7});
  {
    FolderPublisher::Writing writing = publisher.begin();
    CHECK(code_of([&] { publisher.begin(); }) == ErrorCode::kInvalidState);
    writing.write(1, w);
    CHECK(code_of([&] { writing.commit(); }) == ErrorCode::kInvalidArgument);
    CHECK(code_of([&] { writing.write(4, w); }) == ErrorCode::kInvalidArgument);
    CHECK(code_of([&] { writing.write(1, w, 1); }) == ErrorCode::kInvalidArgument);
    CHECK(code_of([&] { writing.out(4); }) == ErrorCode::kInvalidArgument);
    const std::vector<float> floats(7);
    CHECK(code_of([&] { writing.write_floats(2, floats); }) == ErrorCode::kInvalidArgument);  // it has 6
    CHECK(code_of([&] { writing.write_floats(3, floats); }) == ErrorCode::kInvalidArgument);  // of int64
  }
  CHECK(publisher.generation() == 0);
  CHECK_FALSE(fs::exists(folder.path("latest")));
  publish(publisher);
  FolderPublisher::Writing writing = publisher.begin();
  writing.write(1, std::span(w).first(100), 200);
  writing.write(1, std::span(w).first(200));
  writing.write(1, std::span(w).subspan(300), 300);
  CHECK(loaded(folder.path("latest")) == 1);
  CHECK(writing.commit(9) == 2);
  CHECK(code_of([&] { writing.out(0); }) == ErrorCode::kInvalidState);
  const TensorFile file(folder.path("latest/model.safetensors"));
  std::vector<std::byte> found(w.size()), odd(13), wanted(13);
  file.read(file.tensors().find("w")->second, found);
  CHECK(found == w);
  file.read(file.tensors().find("odd")->second, odd);
  fill(0, wanted, 1);
  CHECK(odd == wanted);
}

TEST_CASE("folder publisher: what does not fit into memory is not published, and latest stays") {
  const MemoryFolder folder;
  if (!writes_again(folder.path)) return;
  FolderPublisher(folder.path, kTensors).publish([](std::uint32_t tensor, auto out) { fill(tensor, out, 1); });
  constexpr std::uint64_t kTooMany = std::uint64_t{1} << 40;
  FolderPublisher publisher(folder.path, {{.name = "w", .dtype = DType::kFloat64, .shape = {kTooMany}}});
  for (int i = 0; i < 3; ++i) {
    CHECK(code_of([&] { publisher.begin(); }) == ErrorCode::kNoSpace);
    CHECK(loaded(folder.path + "/latest") == 1);
  }
  CHECK(publisher.generation() == 1);
  CHECK(entries(folder.path + "/.slots").empty());
}

TEST_CASE(
    "folder publisher: wherever a publisher is killed, latest is complete, and the next one goes on and clears up") {
  const MemoryFolder folder;
  const test::Folder others;
  others.write("config.json", "{}");
  const auto publisher = [&] { return FolderPublisher(folder.path, kTensors, {.static_files = others.path()}); };
  const auto generations = [&] {
    std::vector<std::string> names = entries(folder.path);
    std::erase_if(names, [](const std::string& name) { return name[0] != 'g'; });
    return names;
  };
  FolderPublisher(publisher()).publish([](std::uint32_t tensor, auto out) { fill(tensor, out, 1); });
  for (int call = 1;; ++call) {
    CAPTURE(call);
    const std::uint64_t before = loaded(folder.path + "/latest");
    const Ended ended = run_until_call(call, [&] {
      FolderPublisher victim = publisher();
      publish(victim);
      publish(victim);
    });
    if (ended == Ended::kNotTraced) {
      MESSAGE("skipped: this process may not trace others");
      return;
    }
    const std::uint64_t latest = loaded(folder.path + "/latest");
    CHECK(latest >= before);
    CHECK(latest <= before + 2);
    for (const std::string& name : generations()) {
      loaded(folder.path + "/" + name);
      CHECK(fs::exists(folder.path + "/" + name + "/config.json"));
    }
    FolderPublisher next = publisher();
    CHECK(next.generation() >= latest);
    CHECK(loaded(folder.path + "/latest") == next.generation());
    publish(next);
    CHECK(loaded(folder.path + "/latest") == next.generation());
    CHECK(generations().size() == 2);
    CHECK(entries(folder.path).size() == 4);
    CHECK(entries(folder.path + "/.slots").size() <= 2);
    if (ended == Ended::kByItself) {
      CHECK(latest == before + 2);
      return;
    }
  }
}

TEST_CASE("folder publisher: a generation is refused while a part of a tensor is missing") {
  const test::Folder folder;
  FolderPublisher publisher(folder.path(), kTensors);
  publish(publisher);
  {
    FolderPublisher::Writing writing = publisher.begin();
    const std::vector<float> values(kElements);
    writing.write_floats(1, std::span(values).first(1000), 500);
    CHECK_THROWS_WITH_AS(writing.commit(),
                         doctest::Contains("tensor 'w' was written in part: 2000 of its 3000 elements"), Error);
    writing.write_floats(2, std::span(values).first(2), 4);
    writing.write(1, std::as_bytes(std::span(values)).first(2004));
    writing.write_floats(1, std::span(values).last(1500), 1500);
    CHECK_THROWS_WITH_AS(writing.commit(), doctest::Contains("tensor 'b' was written in part: 4 of its 6 elements"),
                         Error);
    writing.write_floats(2, std::span(values).first(4));
    CHECK(loaded(publisher.path()) == 1);
    CHECK(writing.commit() == 2);
  }
  FolderPublisher::Writing writing = publisher.begin();
  for (std::uint32_t tensor = 0; tensor < kTensors.size(); ++tensor) fill(tensor, writing.out(tensor), 3);
  writing.write_floats(2, std::vector<float>(1));
  fill(2, writing.out(2), 3);
  CHECK(writing.commit() == 3);
  CHECK(loaded(publisher.path()) == 3);
}

TEST_CASE("folder publisher: tensors without elements are in the file, and need not be written") {
  const test::Folder folder;
  const std::vector<TensorSpec> tensors = {{.name = "none", .shape = {0, 3}}, {.name = "w", .shape = {2}}};
  FolderPublisher publisher(folder.path("some"), tensors);
  FolderPublisher::Writing writing = publisher.begin();
  writing.write_floats(1, std::vector<float>{1, 2});
  CHECK(writing.commit() == 1);
  CHECK(publish(publisher) == 2);
  const TensorFile file(publisher.path() + "/model.safetensors");
  CHECK(file.tensors().at("none").shape == tensors[0].shape);
  CHECK(file.tensors().at("none").bytes == 0);
  CHECK(file.tensors().at("w").bytes == 8);
  FolderPublisher without(folder.path("without"), {tensors[0]});
  CHECK(without.begin().commit() == 1);
  CHECK(without.begin().commit() == 2);
  CHECK(TensorFile(without.path() + "/model.safetensors").tensors().at("none").bytes == 0);
}

TEST_CASE("folder publisher: there is one for a folder, and a forked child has none") {
  const test::Folder folder;
  FolderPublisher publisher(folder.path(), kTensors);
  publish(publisher);
  CHECK(code_of([&] { FolderPublisher(folder.path(), kTensors); }) == ErrorCode::kAlreadyExists);
  CHECK(test::Child([&] { return code_of([&] { publish(publisher); }) == ErrorCode::kInvalidState ? 0 : 1; }).join() ==
        0);
  CHECK(publish(publisher) == 2);
}

TEST_CASE("folder publisher: invalid arguments and folders are refused") {
  const test::Folder folder;
  const std::string path = folder.path("weights");
  const auto refused = [&](std::vector<TensorSpec> tensors, FolderPublisherOptions options = {}) {
    return code_of([&] { FolderPublisher(path, std::move(tensors), options); });
  };
  CHECK(refused({}) == ErrorCode::kInvalidArgument);
  CHECK(code_of([&] { FolderPublisher("", kTensors); }) == ErrorCode::kInvalidArgument);
  CHECK(refused({{.name = "__metadata__"}}) == ErrorCode::kInvalidArgument);
  CHECK(refused(kTensors, {.files = 1}) == ErrorCode::kInvalidArgument);
  CHECK(refused(kTensors, {.files = 65}) == ErrorCode::kInvalidArgument);
  CHECK(refused(kTensors, {.static_files = folder.path("none")}) == ErrorCode::kNotFound);
  CHECK_FALSE(fs::exists(path));
  folder.write("weights/latest", "");
  CHECK(refused(kTensors) == ErrorCode::kAlreadyExists);
}
