/* Loaded into a server (LD_PRELOAD): knows which bytes of its files are on the disk for certain, tells it another time, fills its disk.
   The lab shares `control` with it; see shim.py, which has the same layout. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define FILES 250
static struct control {
  volatile int64_t ahead_us; /* added to the time of day */
  volatile int64_t full;     /* not 0: files can't grow */
  volatile int64_t refused;  /* writes that were refused because of it */
  struct { volatile int64_t inode, size; } synced[FILES];
} *control;

__attribute__((constructor)) static void begin(void) {
  int fd = open(getenv("SHIM_CONTROL"), O_RDWR | O_CLOEXEC);
  control = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (control == MAP_FAILED) abort();
  close(fd);
}

static void note(struct stat *was) {
  for (int i = 0; i < FILES; i++) {
    if (control->synced[i].inode == 0) control->synced[i].inode = (int64_t)was->st_ino;
    if (control->synced[i].inode == (int64_t)was->st_ino) {
      if (control->synced[i].size < was->st_size) control->synced[i].size = was->st_size;
      return;
    }
  }
  abort();
}

/* What was written before the call is on the disk after it. */
static int synced(int fd, const char *name) {
  int (*real)(int) = dlsym(RTLD_NEXT, name);
  struct stat was;
  int known = fstat(fd, &was) == 0 && S_ISREG(was.st_mode);
  int result = real(fd);
  if (result == 0 && known) note(&was);
  return result;
}
int fsync(int fd) { return synced(fd, "fsync"); }
int fdatasync(int fd) { return synced(fd, "fdatasync"); }

ssize_t write(int fd, const void *data, size_t count) {
  static ssize_t (*real)(int, const void *, size_t);
  struct stat is;
  if (!real) real = dlsym(RTLD_NEXT, "write");
  if (control && control->full && fd > 2 && fstat(fd, &is) == 0 && S_ISREG(is.st_mode)) {
    control->refused++;
    errno = ENOSPC;
    return -1;
  }
  return real(fd, data, count);
}

int gettimeofday(struct timeval *restrict tv, void *restrict tz) {
  struct timespec now;
  static int (*real)(clockid_t, struct timespec *);
  (void)tz;
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  real(CLOCK_REALTIME, &now);
  int64_t us = now.tv_sec * 1000000LL + now.tv_nsec / 1000 + (control ? control->ahead_us : 0);
  tv->tv_sec = us / 1000000;
  tv->tv_usec = us % 1000000;
  return 0;
}
