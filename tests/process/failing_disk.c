// Simulates a failing disk for a program that preloads this library: while the file PS_SHM_TEST_DISK exists, writes
// below the folder PS_SHM_TEST_FOLDER fail with the error number that the file contains; with EBUSY, they wait.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int fails(const char* path) {
  const char *folder = getenv("PS_SHM_TEST_FOLDER"), *file = getenv("PS_SHM_TEST_DISK");
  if (folder == NULL || file == NULL || strncmp(path, folder, strlen(folder)) != 0) return 0;
  FILE* said = fopen(file, "r");
  if (said == NULL) return 0;
  int number = 0;
  if (fscanf(said, "%d", &number) != 1) number = 0;
  fclose(said);
  if (number == 0) return 0;
  errno = number;
  return number;
}

ssize_t write(int descriptor, const void* bytes, size_t count) {
  static ssize_t (*next)(int, const void*, size_t);
  if (next == NULL) *(void**)&next = dlsym(RTLD_NEXT, "write");
  char link[64], path[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  if (length > 0) {
    path[length] = '\0';
    while (fails(path) == EBUSY) usleep(1000);
    if (fails(path) == ENOSPC) return -1;
  }
  return next(descriptor, bytes, count);
}

// EIO: syncing a folder fails; its files have been written.
int fsync(int descriptor) {
  static int (*next)(int);
  if (next == NULL) *(void**)&next = dlsym(RTLD_NEXT, "fsync");
  char link[64], path[PATH_MAX];
  struct stat status;
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  if (length > 0 && fstat(descriptor, &status) == 0 && S_ISDIR(status.st_mode)) {
    path[length] = '\0';
    if (fails(path) == EIO) return -1;
  }
  return next(descriptor);
}

int mkdir(const char* path, mode_t mode) {
  static int (*next)(const char*, mode_t);
  if (next == NULL) *(void**)&next = dlsym(RTLD_NEXT, "mkdir");
  return fails(path) == EROFS ? -1 : next(path, mode);
}
