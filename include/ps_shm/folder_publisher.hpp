/// @file
/// Publishing to a folder: each generation is a safetensors file, for programs that load weights from files and know
/// nothing of this library, such as inference engines. With a folder in /dev/shm the files are in memory.
/// @code{.unparsed}
///   FOLDER/g00000007/model.safetensors   generation 7, and beside it links to what `static_files` has
///   FOLDER/latest                        a link to the newest generation's folder, replaced atomically
/// @endcode
/// @code
///   ps_shm::FolderPublisher publisher("/dev/shm/weights", {{.name = "w", .shape = {512, 512}}});
///   publisher.publish([&](std::uint32_t, std::span<std::byte> out) { std::memcpy(out.data(), w, out.size()); });
///   reload(publisher.path());
/// @endcode
/// A file of an older generation is written again if no process has it open or mapped, which costs no more than a copy.
/// If one has, the generation gets a new file, and the old one stays as it is until its last user has gone. So a file
/// never changes while it is in use. Files are written again on tmpfs and ext4 only, elsewhere each generation gets a
/// new one.
///
/// If the process is killed, `latest` still leads to a complete generation. Nothing is synced: a power failure may
/// damage files on a disk.
///
/// A FolderPublisher is used by one thread at a time. After a fork() it belongs to the parent: in the child every call
/// that needs the folder throws Error with kInvalidState.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ps_shm/bundle_spec.hpp"
#include "ps_shm/export.hpp"
#include "ps_shm/generation_writing.hpp"

namespace PS_SHM_API ps_shm {

/// Options of a FolderPublisher.
struct FolderPublisherOptions {
  /// The number of generations that the folder has, 2 to 64: the newest ones. The oldest is removed when the next
  /// generation begins to be written.
  std::uint32_t files = 2;
  /// A folder with files that do not change, such as config.json and those of a tokenizer. Each generation's folder has
  /// symbolic links to its entries, except to weights (*.safetensors, *.bin, *.pt, *.pth, *.gguf, *.index.json). Empty:
  /// none.
  std::string static_files{};
};

/// The one process that publishes to a folder.
///
/// A FolderPublisher is used by one thread at a time.
class FolderPublisher {
  struct Impl;

 public:
  /// Creates the folder, or takes over one whose publisher has died or left: its generations are numbered on, and what
  /// a killed publisher has not completed is removed.
  ///
  /// @throws Error with kAlreadyExists if another process publishes to the folder, or if it has an entry `latest` that
  /// is no link; kInvalidArgument if `tensors` or `options` are invalid (the limits of a BundleSpec hold, and no tensor
  /// may be named __metadata__); kNotFound if there is no folder `static_files`; kPermissionDenied, kNoSpace or kSystem
  /// if the folder cannot be written.
  FolderPublisher(const std::string& folder, std::vector<TensorSpec> tensors,
                  const FolderPublisherOptions& options = {});

  /// Ends publishing. The folder stays as it is.
  ~FolderPublisher();
  FolderPublisher(FolderPublisher&&) noexcept;
  FolderPublisher& operator=(FolderPublisher&&) = delete;

  /// Fills one tensor of the next generation, directly in the file's memory. It must write all of `out`, whose initial
  /// content is undefined.
  using Write = std::function<void(std::uint32_t tensor, std::span<std::byte> out)>;

  /// Publishes the next generation; `write` is called for each tensor. Returns the generation's number, which is one
  /// more than the last one's. `step` is a number of the caller's own; the file's metadata has it.
  ///
  /// @throws Error as begin() and Writing::commit(), and whatever `write` throws. Nothing is published then.
  /// @progress as the file system's. It never waits for a reader.
  std::uint64_t publish(const Write& write, std::uint64_t step = 0);

  /// A generation that is written tensor by tensor, as Publisher::Writing.
  class Writing : public GenerationWriting {
   public:
    Writing(Writing&&) noexcept = default;

    /// Publishes the generation, and returns its number. Tensors of which nothing was written are copied from the
    /// generation before. Nothing can be written afterwards. `step`: as of publish().
    ///
    /// @throws Error with kInvalidArgument if it is this object's first generation and a tensor was not written, or if
    /// some elements of a tensor were written and others were not, as Publisher::Writing::commit(); kNoSpace,
    /// kPermissionDenied or kSystem if the folder cannot be written. Nothing is published then, and commit() may be
    /// called again.
    std::uint64_t commit(std::uint64_t step = 0);

   private:
    friend class FolderPublisher;
    explicit Writing(Impl& impl) noexcept;
  };

  /// Begins the next generation: removes the oldest one if the folder has as many as `files`, and finds or makes a
  /// file.
  ///
  /// @throws Error with kInvalidState if another generation is being written; kNoSpace, kPermissionDenied or kSystem if
  /// a file cannot be made. Nothing is published then, and `latest` stays as it is.
  /// @progress as the file system's. It never waits for a reader.
  Writing begin();

  /// The number of the newest generation, by this publisher or an earlier one; 0: there is none yet.
  std::uint64_t generation() const noexcept;

  /// The folder of the newest generation; empty: there is none yet. It stays until `files` - 1 more generations are
  /// published and the next one begins to be written.
  ///
  /// @throws std::bad_alloc.
  std::string path() const;

  /// The tensors, in the order of their numbers.
  const std::vector<TensorSpec>& tensors() const noexcept;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace ps_shm
