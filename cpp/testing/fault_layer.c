// fault_layer.c: a library for LD_PRELOAD that records and breaks the file operations of a process. For tests only.
//
// Operations under one root folder are recorded in the order of their effects, with the bytes that they write. Rules
// make chosen operations fail, write less, or take longer. Files outside the root are not touched.
//
//   FAULT_LAYER_ROOT    folder to watch, without symbolic links
//   FAULT_LAYER_RECORD  file that the records are appended to; none without it
//   FAULT_LAYER_RULES   rules, see set_rules
//   FAULT_LAYER_CLOCK   file of 8 bytes: seconds that the wall clock is ahead, negative for behind; may change any time
//
// Allocations of the module _native can fail too: `new` and anonymous mappings, as if memory were exhausted.
//
// A process can also call fault_layer_begin, fault_layer_rules, fault_layer_pause, fault_layer_note and
// fault_layer_count itself.
//
// A record is a header of 25 bytes and two byte strings, see put_record; tests/support/file_record.py reads it.
// Writes through mmap, stdio (fopen) and io_uring are not seen: the test of the recorder compares a replay with the
// real folder, so a writer that uses them is noticed. One lock orders all operations of a process.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define REAL(name) ((__typeof__(&name))find_real(&real_##name, #name))
#define MOST_RULES 16

static char root[PATH_MAX];
static size_t root_length;
static int record_fd = -1;
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

static void* find_real(void** place, const char* name) {
  if (!*place) *place = dlsym(RTLD_NEXT, name);
  return *place;
}

static void *real_open, *real_openat, *real_write, *real_pwrite, *real_writev, *real_pwritev, *real_fsync,
    *real_fdatasync, *real_ftruncate, *real_renameat, *real_renameat2, *real_unlinkat, *real_mkdirat, *real_linkat,
    *real_sendfile, *real_copy_file_range, *real_mmap, *real_clock_gettime, *real__Znwm, *real__Znam,
    *real__ZnwmSt11align_val_t, *real__ZnamSt11align_val_t;

// --- rules ----------------------------------------------------------------------------------------------------------

enum action { kFail, kShort, kDelay, kKill };

struct rule {
  char operation[16];
  char match[128];  // a part of the path; empty for every path
  enum action action;
  int error;
  long delay_ms;
  long skip;   // operations that pass before the first fault
  long times;  // faults that are left; -1 for no limit
  unsigned chance;  // of 1000
};

static struct rule rules[MOST_RULES];
static int rule_count;
static uint64_t random_state = 1;
static long fault_count, operation_count;
static int is_paused;
static volatile int has_alloc_rule;
static size_t least_bytes;  // smaller allocations never fail

static unsigned draw(unsigned bound) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return (unsigned)(random_state % bound);
}

static int parse_rule(char* text, struct rule* rule) {
  *rule = (struct rule){.times = 1, .chance = 1000, .action = kFail, .error = EIO};
  char* position = NULL;
  for (char* field = strtok_r(text, ",", &position); field; field = strtok_r(NULL, ",", &position)) {
    char* value = strchr(field, '=');
    if (!value) return -1;
    *value++ = 0;
    if (!strcmp(field, "on")) snprintf(rule->operation, sizeof rule->operation, "%s", value);
    else if (!strcmp(field, "match")) snprintf(rule->match, sizeof rule->match, "%s", value);
    else if (!strcmp(field, "skip")) rule->skip = atol(value);
    else if (!strcmp(field, "times")) rule->times = atol(value);
    else if (!strcmp(field, "chance")) rule->chance = (unsigned)atol(value);
    else if (!strcmp(field, "least")) least_bytes = strtoull(value, NULL, 10);
    else if (!strcmp(field, "seed")) random_state = strtoull(value, NULL, 10) * 2654435761u + 1;
    else if (strcmp(field, "do")) return -1;
    else if (!strcmp(value, "EIO")) rule->error = EIO;
    else if (!strcmp(value, "ENOSPC")) rule->error = ENOSPC;
    else if (!strcmp(value, "EMFILE")) rule->error = EMFILE;
    else if (!strcmp(value, "ENOMEM")) rule->error = ENOMEM;
    else if (!strcmp(value, "short")) rule->action = kShort;
    else if (!strcmp(value, "kill")) rule->action = kKill;
    else if (!strncmp(value, "delay:", 6)) rule->action = kDelay, rule->delay_ms = atol(value + 6);
    else return -1;
  }
  return rule->operation[0] ? 0 : -1;
}

// Rules are separated by semicolons, their fields by commas:
//   on=create|write|truncate|fsync|fsync_folder|rename|link|unlink|mkdir|any, or alloc
//   do=EIO|ENOSPC|EMFILE|ENOMEM|short|delay:<ms>|kill   match=<part of the path>   least=<bytes of an allocation>
//   skip=<operations that pass first>   times=<faults, -1 for all>   chance=<of 1000>   seed=<number>
// Returns 0, or -1 for invalid rules.
static int set_rules(const char* text) {
  char copy[4096];
  snprintf(copy, sizeof copy, "%s", text ? text : "");
  int count = 0;
  char* position = NULL;
  for (char* one = strtok_r(copy, ";", &position); one; one = strtok_r(NULL, ";", &position)) {
    if (count == MOST_RULES || parse_rule(one, &rules[count]) != 0) return -1;
    ++count;
  }
  rule_count = count;
  has_alloc_rule = 0;
  for (int i = 0; i < count; ++i) has_alloc_rule |= !strcmp(rules[i].operation, "alloc");
  return 0;
}

static void put_record(char kind, uint64_t inode, uint64_t number, const void* first, size_t first_length,
                       const void* second, size_t second_length);

// Applies the rules to an operation. Returns 0 to go ahead, 1 to write less, -1 to fail with errno set.
static int decide(const char* operation, const char* path) {
  ++operation_count;
  for (int i = 0; i < rule_count && !is_paused; ++i) {
    struct rule* rule = &rules[i];
    const int is_any = !strcmp(rule->operation, "any") && strcmp(operation, "alloc");
    if (strcmp(rule->operation, operation) && !is_any) continue;
    if (rule->match[0] && !strstr(path, rule->match)) continue;
    if (rule->skip > 0) {
      --rule->skip;
      continue;
    }
    if (rule->times == 0 || (rule->chance < 1000 && draw(1000) >= rule->chance)) continue;
    if (rule->action == kShort && strcmp(operation, "write")) continue;
    if (rule->times > 0) --rule->times;
    ++fault_count;
    put_record('E', 0, (uint64_t)rule->error, operation, strlen(operation), path, strlen(path));
    if (rule->action == kKill) raise(SIGKILL);
    if (rule->action == kDelay) {
      const struct timespec pause = {rule->delay_ms / 1000, rule->delay_ms % 1000 * 1000000};
      nanosleep(&pause, NULL);
      continue;
    }
    if (rule->action == kShort) return 1;
    errno = rule->error;
    return -1;
  }
  return 0;
}

// --- records --------------------------------------------------------------------------------------------------------

static void write_all(const void* data, size_t length) {
  const char* at = data;
  while (length > 0) {
    const ssize_t done = REAL(write)(record_fd, at, length);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) abort();  // a record with a hole would accuse the wrong code
    at += done;
    length -= (size_t)done;
  }
}

static void put_record(char kind, uint64_t inode, uint64_t number, const void* first, size_t first_length,
                       const void* second, size_t second_length) {
  if (record_fd < 0) return;
  const int saved = errno;
  unsigned char header[25];
  const uint32_t lengths[2] = {(uint32_t)first_length, (uint32_t)second_length};
  header[0] = (unsigned char)kind;
  memcpy(header + 1, &inode, 8);
  memcpy(header + 9, &number, 8);
  memcpy(header + 17, lengths, 8);
  write_all(header, sizeof header);
  if (first_length) write_all(first, first_length);
  if (second_length) write_all(second, second_length);
  errno = saved;
}

static void put_path(char kind, uint64_t inode, const char* path) {
  put_record(kind, inode, 0, path, strlen(path), NULL, 0);
}

// --- paths ----------------------------------------------------------------------------------------------------------

// Resolves "." and ".." by name.
static void tidy(char* path) {
  char result[PATH_MAX];
  size_t length = 0;
  char* position = NULL;
  for (char* part = strtok_r(path, "/", &position); part; part = strtok_r(NULL, "/", &position)) {
    if (!strcmp(part, ".")) continue;
    if (!strcmp(part, "..")) {
      while (length > 0 && result[--length] != '/') continue;
      continue;
    }
    const size_t size = strlen(part);
    if (length + size + 2 > sizeof result) break;
    result[length++] = '/';
    memcpy(result + length, part, size);
    length += size;
  }
  result[length] = 0;
  memcpy(path, result, length + 1);
}

static int is_inside(const char* path) {
  return root_length > 0 && !strncmp(path, root, root_length) && (path[root_length] == '/' || path[root_length] == 0);
}

// Writes the absolute path; returns whether it is under the root.
static int find_path(int folder, const char* path, char* out) {
  out[0] = 0;
  if (root_length == 0 || !path) return 0;
  const int saved = errno;
  char head[PATH_MAX] = "";
  if (path[0] != '/') {
    if (folder == AT_FDCWD) {
      if (!getcwd(head, sizeof head)) head[0] = 0;
    } else {
      char link_name[64];
      snprintf(link_name, sizeof link_name, "/proc/self/fd/%d", folder);
      const ssize_t length = readlink(link_name, head, sizeof head - 1);
      head[length > 0 ? length : 0] = 0;
    }
  }
  const size_t head_length = strlen(head);
  if (head_length + strlen(path) + 2 > PATH_MAX) return 0;
  memcpy(out, head, head_length);
  out[head_length] = '/';
  strcpy(out + head_length + 1, path);
  tidy(out);
  errno = saved;
  return is_inside(out);
}

// Finds the path and the inode of an open file or folder under the root; returns whether it is one.
static int find_open(int fd, char* out, struct stat* info) {
  if (root_length == 0 || fd == record_fd) return 0;
  const int saved = errno;
  char link_name[64];
  snprintf(link_name, sizeof link_name, "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(link_name, out, PATH_MAX - 1);
  out[length > 0 ? length : 0] = 0;
  const int is_ours =
      length > 0 && is_inside(out) && fstat(fd, info) == 0 && (S_ISREG(info->st_mode) || S_ISDIR(info->st_mode));
  errno = saved;
  return is_ours;
}

// --- control --------------------------------------------------------------------------------------------------------

// Watches a folder from now on, and appends records to a file; NULL for none. Returns 0 or an errno.
EXPORT int fault_layer_begin(const char* folder, const char* record) {
  pthread_mutex_lock(&turn);
  int result = 0;
  if (record && record[0]) {
    record_fd = REAL(open)(record, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (record_fd < 0) result = errno;
  }
  if (result == 0) {
    snprintf(root, sizeof root, "%s", folder);
    root_length = strlen(root);
  }
  pthread_mutex_unlock(&turn);
  return result;
}

EXPORT int fault_layer_rules(const char* text) {
  pthread_mutex_lock(&turn);
  const int result = set_rules(text);
  pthread_mutex_unlock(&turn);
  return result;
}

// Suspends the rules (1), or puts them into force again (0).
EXPORT void fault_layer_pause(int pause) {
  pthread_mutex_lock(&turn);
  is_paused = pause;
  pthread_mutex_unlock(&turn);
}

// Puts a note of the caller among the records.
EXPORT void fault_layer_note(const char* text) {
  pthread_mutex_lock(&turn);
  put_path('N', 0, text);
  pthread_mutex_unlock(&turn);
}

// Returns the number of faults so far (0), or of operations under the root (1).
EXPORT long fault_layer_count(int what) {
  pthread_mutex_lock(&turn);
  const long result = what == 0 ? fault_count : operation_count;
  pthread_mutex_unlock(&turn);
  return result;
}

__attribute__((constructor)) static void begin_from_environment(void) {
  const char* folder = getenv("FAULT_LAYER_ROOT");
  if (!folder) return;
  if (fault_layer_begin(folder, getenv("FAULT_LAYER_RECORD")) != 0 ||
      fault_layer_rules(getenv("FAULT_LAYER_RULES")) != 0) {
    fprintf(stderr, "fault layer: invalid record file or rules\n");
    _exit(99);
  }
}

// --- memory ---------------------------------------------------------------------------------------------------------

static uintptr_t native_begin, native_end;

static int find_native(struct dl_phdr_info* info, size_t size, void* unused) {
  (void)size, (void)unused;
  const char* name = info->dlpi_name ? strrchr(info->dlpi_name, '/') : NULL;
  if (!name || strncmp(name, "/_native", 8) || !strstr(info->dlpi_name, "monolith")) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    if (info->dlpi_phdr[i].p_type != PT_LOAD || !(info->dlpi_phdr[i].p_flags & PF_X)) continue;
    native_begin = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
    native_end = native_begin + info->dlpi_phdr[i].p_memsz;
  }
  return 1;
}

// Whether an allocation of the module _native must fail.
static int fails_allocation(size_t size, const void* caller) {
  if (!has_alloc_rule || size < least_bytes) return 0;
  pthread_mutex_lock(&turn);
  if (native_begin == 0) dl_iterate_phdr(find_native, NULL);
  const int is_native = (uintptr_t)caller >= native_begin && (uintptr_t)caller < native_end;
  const int result = is_native && decide("alloc", "") < 0;
  pthread_mutex_unlock(&turn);
  return result;
}

// The names of C++: operator new, new[], and both with an alignment. The real ones throw for a size that no machine has.
EXPORT void* _Znwm(size_t size);
EXPORT void* _Znam(size_t size);
EXPORT void* _ZnwmSt11align_val_t(size_t size, size_t alignment);
EXPORT void* _ZnamSt11align_val_t(size_t size, size_t alignment);

void* _Znwm(size_t size) {
  return REAL(_Znwm)(fails_allocation(size, __builtin_return_address(0)) ? PTRDIFF_MAX : size);
}
void* _Znam(size_t size) {
  return REAL(_Znam)(fails_allocation(size, __builtin_return_address(0)) ? PTRDIFF_MAX : size);
}
void* _ZnwmSt11align_val_t(size_t size, size_t alignment) {
  const size_t wanted = fails_allocation(size, __builtin_return_address(0)) ? PTRDIFF_MAX - alignment : size;
  return REAL(_ZnwmSt11align_val_t)(wanted, alignment);
}
void* _ZnamSt11align_val_t(size_t size, size_t alignment) {
  const size_t wanted = fails_allocation(size, __builtin_return_address(0)) ? PTRDIFF_MAX - alignment : size;
  return REAL(_ZnamSt11align_val_t)(wanted, alignment);
}

static void* map_watched(void* address, size_t size, int access, int flags, int fd, off_t offset, const void* caller) {
  if ((flags & MAP_ANONYMOUS) && !(flags & MAP_FIXED) && fails_allocation(size, caller)) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  return REAL(mmap)(address, size, access, flags, fd, offset);
}
EXPORT void* mmap(void* address, size_t size, int access, int flags, int fd, off_t offset) {
  return map_watched(address, size, access, flags, fd, offset, __builtin_return_address(0));
}
EXPORT void* mmap64(void* address, size_t size, int access, int flags, int fd, off64_t offset) {
  return map_watched(address, size, access, flags, fd, offset, __builtin_return_address(0));
}

// --- wall clock -----------------------------------------------------------------------------------------------------

static const volatile int64_t* clock_offset_s;

__attribute__((constructor)) static void open_clock(void) {
  const char* path = getenv("FAULT_LAYER_CLOCK");
  if (!path) return;
  const int fd = REAL(open)(path, O_RDONLY | O_CLOEXEC);
  void* page = fd < 0 ? MAP_FAILED : REAL(mmap)(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
  if (page == MAP_FAILED) {
    fprintf(stderr, "fault layer: cannot map the clock file\n");
    _exit(99);
  }
  clock_offset_s = page;
}

EXPORT int clock_gettime(clockid_t id, struct timespec* time) {
  const int result = REAL(clock_gettime)(id, time);
  if (result == 0 && clock_offset_s && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
    time->tv_sec += *clock_offset_s;
  }
  return result;
}
EXPORT int gettimeofday(struct timeval* restrict time, void* restrict zone) {
  (void)zone;
  struct timespec now;
  const int result = clock_gettime(CLOCK_REALTIME, &now);
  *time = (struct timeval){now.tv_sec, now.tv_nsec / 1000};
  return result;
}
EXPORT time_t time(time_t* out) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out) *out = now.tv_sec;
  return now.tv_sec;
}

// --- files ----------------------------------------------------------------------------------------------------------

static int open_watched(int folder, const char* path, int flags, mode_t mode) {
  char full[PATH_MAX];
  const int writes = (flags & O_ACCMODE) != O_RDONLY || (flags & (O_CREAT | O_TRUNC)) != 0;
  if (!writes || !find_path(folder, path, full)) return REAL(openat)(folder, path, flags, mode);
  pthread_mutex_lock(&turn);
  struct stat before, after;
  const int existed = stat(full, &before) == 0;
  int fd = -1;
  if (existed || decide("create", full) >= 0) fd = REAL(openat)(folder, path, flags, mode);
  if (fd >= 0 && fstat(fd, &after) == 0 && S_ISREG(after.st_mode)) {
    if (!existed) {
      put_path('C', after.st_ino, full);
    } else if (flags & O_TRUNC) {
      put_record('T', after.st_ino, 0, NULL, 0, NULL, 0);
    }
  }
  pthread_mutex_unlock(&turn);
  return fd;
}

#define MODE_OF(flags, mode)                  \
  mode_t mode = 0;                            \
  if ((flags) & (O_CREAT | __O_TMPFILE)) {    \
    va_list list;                             \
    va_start(list, flags);                    \
    mode = (mode_t)va_arg(list, unsigned);    \
    va_end(list);                             \
  }

EXPORT int open(const char* path, int flags, ...) {
  MODE_OF(flags, mode)
  return open_watched(AT_FDCWD, path, flags, mode);
}
EXPORT int openat(int folder, const char* path, int flags, ...) {
  MODE_OF(flags, mode)
  return open_watched(folder, path, flags, mode);
}
EXPORT int open64(const char* path, int flags, ...) {
  MODE_OF(flags, mode)
  return open_watched(AT_FDCWD, path, flags | O_LARGEFILE, mode);
}
EXPORT int openat64(int folder, const char* path, int flags, ...) {
  MODE_OF(flags, mode)
  return open_watched(folder, path, flags | O_LARGEFILE, mode);
}
EXPORT int creat(const char* path, mode_t mode) {
  return open_watched(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

// Where the next write of this file goes to.
static off_t next_offset(int fd, const struct stat* info) {
  return fcntl(fd, F_GETFL) & O_APPEND ? info->st_size : lseek(fd, 0, SEEK_CUR);
}

// Half of a write, in whole sectors where possible: files that bypass the cache need it.
static size_t shorten(size_t length) { return length >= 1024 ? length / 2 / 512 * 512 : length > 1 ? length / 2 : length; }

// Writes at `offset`, or at the position of the file where it is negative.
static ssize_t write_watched(int fd, const void* data, size_t length, off_t offset) {
  char full[PATH_MAX];
  struct stat info;
  if (!find_open(fd, full, &info))
    return offset < 0 ? REAL(write)(fd, data, length) : REAL(pwrite)(fd, data, length, offset);
  pthread_mutex_lock(&turn);
  ssize_t done = -1;
  const int decision = decide("write", full);
  if (decision >= 0) {
    fstat(fd, &info);
    const off_t at = offset < 0 ? next_offset(fd, &info) : offset;
    const size_t wanted = decision > 0 ? shorten(length) : length;
    done = offset < 0 ? REAL(write)(fd, data, wanted) : REAL(pwrite)(fd, data, wanted, offset);
    if (done > 0) put_record('W', info.st_ino, (uint64_t)at, data, (size_t)done, NULL, 0);
  }
  pthread_mutex_unlock(&turn);
  return done;
}

EXPORT ssize_t write(int fd, const void* data, size_t length) { return write_watched(fd, data, length, -1); }
EXPORT ssize_t pwrite(int fd, const void* data, size_t length, off_t offset) {
  return write_watched(fd, data, length, offset);
}
EXPORT ssize_t pwrite64(int fd, const void* data, size_t length, off64_t offset) {
  return write_watched(fd, data, length, offset);
}

// A vector is written piece by piece: callers must expect short writes anyway.
static ssize_t write_pieces(int fd, const struct iovec* pieces, int count, off_t offset) {
  ssize_t total = 0;
  for (int i = 0; i < count; ++i) {
    const ssize_t done = write_watched(fd, pieces[i].iov_base, pieces[i].iov_len, offset < 0 ? -1 : offset + total);
    if (done < 0) return total > 0 ? total : done;
    total += done;
    if ((size_t)done < pieces[i].iov_len) break;
  }
  return total;
}

EXPORT ssize_t writev(int fd, const struct iovec* pieces, int count) {
  char full[PATH_MAX];
  struct stat info;
  return find_open(fd, full, &info) ? write_pieces(fd, pieces, count, -1) : REAL(writev)(fd, pieces, count);
}
EXPORT ssize_t pwritev(int fd, const struct iovec* pieces, int count, off_t offset) {
  char full[PATH_MAX];
  struct stat info;
  return find_open(fd, full, &info) ? write_pieces(fd, pieces, count, offset)
                                    : REAL(pwritev)(fd, pieces, count, offset);
}

// Copies inside the kernel fail for watched targets, as on file systems without them: callers copy by read and write.
EXPORT ssize_t copy_file_range(int in, off64_t* in_offset, int out, off64_t* out_offset, size_t length,
                               unsigned flags) {
  char full[PATH_MAX];
  struct stat info;
  if (!find_open(out, full, &info)) return REAL(copy_file_range)(in, in_offset, out, out_offset, length, flags);
  errno = EXDEV;
  return -1;
}
static ssize_t send_watched(int out, int in, off_t* offset, size_t length) {
  char full[PATH_MAX];
  struct stat info;
  if (!find_open(out, full, &info)) return REAL(sendfile)(out, in, offset, length);
  errno = ENOTSOCK;
  return -1;
}
EXPORT ssize_t sendfile(int out, int in, off_t* offset, size_t length) { return send_watched(out, in, offset, length); }
EXPORT ssize_t sendfile64(int out, int in, off64_t* offset, size_t length) {
  return send_watched(out, in, (off_t*)offset, length);
}

static int cut_watched(int fd, off_t size) {
  char full[PATH_MAX];
  struct stat info;
  if (!find_open(fd, full, &info)) return REAL(ftruncate)(fd, size);
  pthread_mutex_lock(&turn);
  int result = -1;
  if (decide("truncate", full) >= 0) {
    result = REAL(ftruncate)(fd, size);
    if (result == 0) put_record('T', info.st_ino, (uint64_t)size, NULL, 0, NULL, 0);
  }
  pthread_mutex_unlock(&turn);
  return result;
}
EXPORT int ftruncate(int fd, off_t size) { return cut_watched(fd, size); }
EXPORT int ftruncate64(int fd, off64_t size) { return cut_watched(fd, size); }

static int sync_watched(int fd, int is_data) {
  char full[PATH_MAX];
  struct stat info;
  if (!find_open(fd, full, &info)) return is_data ? REAL(fdatasync)(fd) : REAL(fsync)(fd);
  pthread_mutex_lock(&turn);
  int result = -1;
  // The disk of the test is simulated from the records: the real one need not be waited for.
  if (decide(S_ISDIR(info.st_mode) ? "fsync_folder" : "fsync", full) >= 0) result = 0;
  put_path(result == 0 ? 'S' : 'F', info.st_ino, full);
  pthread_mutex_unlock(&turn);
  return result;
}
EXPORT int fsync(int fd) { return sync_watched(fd, 0); }
EXPORT int fdatasync(int fd) { return sync_watched(fd, 1); }

// --- names ----------------------------------------------------------------------------------------------------------

#define RENAME_EXCHANGE_FLAG 2u

static int rename_watched(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  char source[PATH_MAX], target[PATH_MAX];
  const int from_inside = find_path(from_folder, from, source);
  const int to_inside = find_path(to_folder, to, target);
  if (!from_inside && !to_inside)
    return flags ? REAL(renameat2)(from_folder, from, to_folder, to, flags)
                 : REAL(renameat)(from_folder, from, to_folder, to);
  pthread_mutex_lock(&turn);
  int result = -1;
  if (decide("rename", target) >= 0) {
    result = flags ? REAL(renameat2)(from_folder, from, to_folder, to, flags)
                   : REAL(renameat)(from_folder, from, to_folder, to);
    if (result == 0)
      put_record('R', 0, flags & RENAME_EXCHANGE_FLAG, source, strlen(source), target, strlen(target));
  }
  pthread_mutex_unlock(&turn);
  return result;
}
EXPORT int rename(const char* from, const char* to) { return rename_watched(AT_FDCWD, from, AT_FDCWD, to, 0); }
EXPORT int renameat(int from_folder, const char* from, int to_folder, const char* to) {
  return rename_watched(from_folder, from, to_folder, to, 0);
}
EXPORT int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  return rename_watched(from_folder, from, to_folder, to, flags);
}

static int link_watched(int from_folder, const char* from, int to_folder, const char* to, int flags) {
  char source[PATH_MAX], target[PATH_MAX];
  find_path(from_folder, from, source);
  if (!find_path(to_folder, to, target)) return REAL(linkat)(from_folder, from, to_folder, to, flags);
  pthread_mutex_lock(&turn);
  int result = -1;
  if (decide("link", target) >= 0) {
    result = REAL(linkat)(from_folder, from, to_folder, to, flags);
    if (result == 0) put_record('L', 0, 0, source, strlen(source), target, strlen(target));
  }
  pthread_mutex_unlock(&turn);
  return result;
}
EXPORT int link(const char* from, const char* to) { return link_watched(AT_FDCWD, from, AT_FDCWD, to, 0); }
EXPORT int linkat(int from_folder, const char* from, int to_folder, const char* to, int flags) {
  return link_watched(from_folder, from, to_folder, to, flags);
}

static int remove_watched(int folder, const char* path, int flags) {
  char full[PATH_MAX];
  if (!find_path(folder, path, full)) return REAL(unlinkat)(folder, path, flags);
  pthread_mutex_lock(&turn);
  int result = -1;
  if (decide("unlink", full) >= 0) {
    result = REAL(unlinkat)(folder, path, flags);
    if (result == 0) put_path('U', 0, full);
  }
  pthread_mutex_unlock(&turn);
  return result;
}
EXPORT int unlink(const char* path) { return remove_watched(AT_FDCWD, path, 0); }
EXPORT int unlinkat(int folder, const char* path, int flags) { return remove_watched(folder, path, flags); }
EXPORT int rmdir(const char* path) { return remove_watched(AT_FDCWD, path, AT_REMOVEDIR); }

static int make_watched(int folder, const char* path, mode_t mode) {
  char full[PATH_MAX];
  if (!find_path(folder, path, full)) return REAL(mkdirat)(folder, path, mode);
  pthread_mutex_lock(&turn);
  int result = -1;
  struct stat info;
  if (decide("mkdir", full) >= 0) {
    result = REAL(mkdirat)(folder, path, mode);
    if (result == 0 && stat(full, &info) == 0) put_path('M', info.st_ino, full);
  }
  pthread_mutex_unlock(&turn);
  return result;
}
EXPORT int mkdir(const char* path, mode_t mode) { return make_watched(AT_FDCWD, path, mode); }
EXPORT int mkdirat(int folder, const char* path, mode_t mode) { return make_watched(folder, path, mode); }
