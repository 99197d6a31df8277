// Runs a fuzz harness without a fuzzer: on all files of a folder, and on mutations of them, the same every time.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
extern "C" __attribute__((weak)) int LLVMFuzzerInitialize(int* argc, char*** argv);

namespace {

using Bytes = std::vector<std::uint8_t>;

Bytes mutate(const std::vector<Bytes>& corpus, std::mt19937_64& random) {
  Bytes bytes = corpus[random() % corpus.size()];
  for (std::uint64_t changes = 1 + random() % 4; changes != 0; --changes) {
    const std::size_t at = bytes.empty() ? 0 : random() % bytes.size();
    const Bytes& other = corpus[random() % corpus.size()];
    switch (bytes.empty() ? 0 : random() % 5) {
      case 0:
        bytes.insert(bytes.begin() + std::ptrdiff_t(at), static_cast<std::uint8_t>(random()));
        break;
      case 1:
        bytes[at] = static_cast<std::uint8_t>(random());
        break;
      case 2:
        bytes[at] ^= static_cast<std::uint8_t>(1U << random() % 8);
        break;
      case 3:
        bytes.resize(at);
        break;
      default:
        bytes.insert(bytes.begin() + std::ptrdiff_t(at), other.begin(), other.end());
    }
  }
  return bytes;
}

}  // namespace

// Arguments: FOLDER MUTATIONS
int main(int argc, char** argv) {
  if (argc != 3) return 2;
  if (LLVMFuzzerInitialize != nullptr) LLVMFuzzerInitialize(&argc, &argv);
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1])) names.push_back(entry.path());
  std::sort(names.begin(), names.end());
  std::vector<Bytes> corpus;
  for (const std::string& name : names) {
    std::ifstream file(name, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  if (corpus.empty()) return 2;
  for (const Bytes& bytes : corpus) LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  std::mt19937_64 random(1);
  for (int i = std::atoi(argv[2]); i > 0; --i) {
    const Bytes bytes = mutate(corpus, random);
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  }
}
