/* Counts the writes below a folder, of a process and all that it starts, and kills at the n-th. Loaded with LD_PRELOAD.

   The control file, shared by all processes: how many writes there were, at which to kill (0: never), whether the half
   of a write is done first, whether the whole process group is killed, and what was about to happen at the kill. Writes
   are those that go through the C library: of Python, SQLite, Delta Lake and TVM. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

struct control {
    long count, at, torn, group, listing;
    char where[512];
};
static struct control *control;
static char below[PATH_MAX];
static int list = -1;

void torture_arm(const char *path, const char *folder) {
    int fd = syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);
    if (fd < 0) abort();
    snprintf(below, sizeof below, "%s/", folder);
    struct control *mapped = mmap(0, sizeof *mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED) abort();
    syscall(SYS_close, fd);
    if (mapped->listing) {
        char name[PATH_MAX + 8];
        snprintf(name, sizeof name, "%s.list", path);
        list = syscall(SYS_openat, AT_FDCWD, name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    }
    control = mapped;
}

__attribute__((constructor)) static void started(void) {
    const char *path = getenv("TORTURE_CONTROL"), *folder = getenv("TORTURE_BELOW");
    if (path && folder) torture_arm(path, folder);
}

static void die(void) {
    kill(control->group ? 0 : getpid(), SIGKILL);
    for (;;) pause();
}

/* Whether this is the write to die at. */
static int here(const char *operation, const char *path) {
    if (!control || strncmp(path, below, strlen(below))) return 0;
    long number = __sync_add_and_fetch(&control->count, 1);
    if (list >= 0) {
        char line[PATH_MAX + 32];
        int size = snprintf(line, sizeof line, "%s %s\n", operation, path + strlen(below));
        syscall(SYS_write, list, line, size);
    }
    if (number != control->at) return 0;
    snprintf(control->where, sizeof control->where, "%s %s", operation, path + strlen(below));
    return 1;
}

static int at_fd(const char *operation, int fd) {
    char link[32], path[PATH_MAX];
    if (!control) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size <= 0) return 0;
    path[size] = 0;
    return here(operation, path);
}

static int at_path(const char *operation, int folder, const char *name) {
    char path[PATH_MAX];
    if (!control || !name) return 0;
    if (name[0] == '/') return here(operation, name);
    char link[32];
    if (folder == AT_FDCWD) {
        if (!getcwd(path, sizeof path)) return 0;
    } else {
        snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
        ssize_t size = readlink(link, path, sizeof path - 1);
        if (size <= 0) return 0;
        path[size] = 0;
    }
    size_t used = strlen(path);
    snprintf(path + used, sizeof path - used, "/%s", name);
    return here(operation, path);
}

#define REAL(name) ((__typeof__(&name))real(#name))
static void *real(const char *name) { return dlsym(RTLD_NEXT, name); }

ssize_t write(int fd, const void *data, size_t size) {
    if (at_fd("write", fd)) {
        if (control->torn) syscall(SYS_write, fd, data, size / 2);
        die();
    }
    return REAL(write)(fd, data, size);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t place) {
    if (at_fd("write", fd)) {
        if (control->torn) syscall(SYS_pwrite64, fd, data, size / 2, place);
        die();
    }
    return REAL(pwrite)(fd, data, size, place);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t place) {
    if (at_fd("write", fd)) {
        if (control->torn) syscall(SYS_pwrite64, fd, data, size / 2, place);
        die();
    }
    return REAL(pwrite64)(fd, data, size, place);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    if (at_fd("write", fd)) {
        if (control->torn && count) syscall(SYS_write, fd, parts[0].iov_base, parts[0].iov_len / 2);
        die();
    }
    return REAL(writev)(fd, parts, count);
}

#define ON_FD(name, operation, parameters, arguments)              \
    int name parameters {                                          \
        if (at_fd(operation, fd)) die();                           \
        return REAL(name) arguments;                               \
    }
#define ON_PATH(name, operation, folder, path, parameters, arguments) \
    int name parameters {                                             \
        if (at_path(operation, folder, path)) die();                  \
        return REAL(name) arguments;                                  \
    }
ON_FD(fsync, "sync", (int fd), (fd))
ON_FD(fdatasync, "sync", (int fd), (fd))
ON_FD(ftruncate, "truncate", (int fd, off_t size), (fd, size))
ON_FD(ftruncate64, "truncate", (int fd, off64_t size), (fd, size))
ON_PATH(rename, "rename to", AT_FDCWD, to, (const char *from, const char *to), (from, to))
ON_PATH(renameat, "rename to", two, to, (int one, const char *from, int two, const char *to), (one, from, two, to))
ON_PATH(renameat2, "rename to", two, to, (int one, const char *from, int two, const char *to, unsigned flags), (one, from, two, to, flags))
ON_PATH(link, "link", AT_FDCWD, to, (const char *from, const char *to), (from, to))
ON_PATH(linkat, "link", two, to, (int one, const char *from, int two, const char *to, int flags), (one, from, two, to, flags))
ON_PATH(symlink, "link", AT_FDCWD, to, (const char *from, const char *to), (from, to))
ON_PATH(unlink, "remove", AT_FDCWD, path, (const char *path), (path))
ON_PATH(unlinkat, "remove", folder, path, (int folder, const char *path, int flags), (folder, path, flags))
ON_PATH(rmdir, "remove", AT_FDCWD, path, (const char *path), (path))
ON_PATH(mkdir, "make", AT_FDCWD, path, (const char *path, mode_t mode), (path, mode))
ON_PATH(mkdirat, "make", folder, path, (int folder, const char *path, mode_t mode), (folder, path, mode))

#define CHANGES (O_CREAT | O_TRUNC)
#define OPENED(name, folder, parameters, arguments)                                     \
    int name parameters {                                                               \
        mode_t mode = 0;                                                                \
        if (flags & (O_CREAT | O_TMPFILE)) {                                            \
            va_list rest;                                                               \
            va_start(rest, flags);                                                      \
            mode = va_arg(rest, mode_t);                                                \
            va_end(rest);                                                               \
        }                                                                               \
        if ((flags & CHANGES) && at_path("open", folder, path)) die();                  \
        return REAL(name) arguments;                                                    \
    }
OPENED(open, AT_FDCWD, (const char *path, int flags, ...), (path, flags, mode))
OPENED(open64, AT_FDCWD, (const char *path, int flags, ...), (path, flags, mode))
OPENED(openat, folder, (int folder, const char *path, int flags, ...), (folder, path, flags, mode))
OPENED(openat64, folder, (int folder, const char *path, int flags, ...), (folder, path, flags, mode))
