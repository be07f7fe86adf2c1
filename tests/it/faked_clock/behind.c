/* Clocks that are behind: a program that asks the C library for the time of day or for the monotonic clock gets it less
 * what the file of CLOCKS_BEHIND says, in nanoseconds. The clock that goes on while a machine is suspended is not changed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *behind; /* of the time of day, and of the monotonic clock */
static int (*ask)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    ask = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    const char *name = getenv("CLOCKS_BEHIND");
    int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    if (file >= 0) {
        void *mapped = mmap(NULL, 16, PROT_READ, MAP_SHARED, file, 0);
        close(file);
        behind = mapped == MAP_FAILED ? NULL : mapped;
    }
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    if (!ask)
        begin();
    int failed = ask(clock, time);
    if (failed || !behind || (clock != CLOCK_REALTIME && clock != CLOCK_MONOTONIC))
        return failed;
    int64_t nanos = time->tv_sec * INT64_C(1000000000) + time->tv_nsec - behind[clock == CLOCK_MONOTONIC];
    time->tv_sec = nanos / 1000000000;
    time->tv_nsec = nanos % 1000000000;
    return 0;
}
