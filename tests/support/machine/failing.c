// A disk that fails: while the file FAILING_ERROR holds an error number, whatever touches something below the folder
// FAILING_FOLDER gets that error (EIO, ESTALE), by its path or through a file that was opened before.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

static volatile const long *number;
static const char *folder;

__attribute__((constructor)) static void begin(void) {
    int (*plain)(const char *, int, ...) = dlsym(RTLD_NEXT, "open");
    int file = plain(getenv("FAILING_ERROR"), O_RDONLY);
    void *page = mmap(0, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
    if (page == MAP_FAILED || !getenv("FAILING_FOLDER")) abort();
    folder = strdup(getenv("FAILING_FOLDER"));  // a program may write its title over its environment
    number = page;
    close(file);
}

static int below(const char *path) { return !strncmp(path, folder, strlen(folder)); }

static int fails(const char *path) {
    if (!number || !*number || !path || !below(path)) return 0;
    errno = (int)*number;
    return 1;
}

static int file_fails(int file) {
    if (!number || !*number) return 0;
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return fails(path);
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define BY_PATH(type, name, failed, declared, given) \
    type name declared { return fails(path) ? failed : NEXT(name) given; }
#define BY_FILE(type, name, declared, given) \
    type name declared { return file_fails(file) ? -1 : NEXT(name) given; }
#define OPENING(name, declared, given) \
    int name declared { \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(rest, mode_t) : 0; \
        va_end(rest); \
        return fails(path) ? -1 : NEXT(name) given; \
    }

OPENING(open, (const char *path, int flags, ...), (path, flags, mode))
OPENING(open64, (const char *path, int flags, ...), (path, flags, mode))
OPENING(openat, (int at, const char *path, int flags, ...), (at, path, flags, mode))
OPENING(openat64, (int at, const char *path, int flags, ...), (at, path, flags, mode))
BY_PATH(FILE *, fopen, NULL, (const char *path, const char *how), (path, how))
BY_PATH(FILE *, fopen64, NULL, (const char *path, const char *how), (path, how))
BY_PATH(DIR *, opendir, NULL, (const char *path), (path))
BY_PATH(int, rename, -1, (const char *path, const char *to), (path, to))
BY_PATH(int, mkdir, -1, (const char *path, mode_t mode), (path, mode))
BY_PATH(int, rmdir, -1, (const char *path), (path))
BY_PATH(int, unlink, -1, (const char *path), (path))
BY_PATH(int, stat, -1, (const char *path, struct stat *told), (path, told))
BY_PATH(int, stat64, -1, (const char *path, struct stat64 *told), (path, told))
BY_PATH(int, lstat, -1, (const char *path, struct stat *told), (path, told))
BY_PATH(int, lstat64, -1, (const char *path, struct stat64 *told), (path, told))
BY_PATH(int, fstatat, -1, (int at, const char *path, struct stat *told, int flags), (at, path, told, flags))
BY_PATH(int, fstatat64, -1, (int at, const char *path, struct stat64 *told, int flags), (at, path, told, flags))
BY_PATH(int, statvfs, -1, (const char *path, struct statvfs *told), (path, told))
BY_PATH(int, statvfs64, -1, (const char *path, struct statvfs64 *told), (path, told))
BY_PATH(int, utimensat, -1, (int at, const char *path, const struct timespec times[2], int flags), (at, path, times, flags))
BY_FILE(ssize_t, read, (int file, void *into, size_t count), (file, into, count))
BY_FILE(ssize_t, pread, (int file, void *into, size_t count, off_t from), (file, into, count, from))
BY_FILE(ssize_t, write, (int file, const void *from, size_t count), (file, from, count))
BY_FILE(ssize_t, writev, (int file, const struct iovec *parts, int count), (file, parts, count))
BY_FILE(int, fsync, (int file), (file))
BY_FILE(int, fdatasync, (int file), (file))
BY_FILE(int, ftruncate, (int file, off_t length), (file, length))
