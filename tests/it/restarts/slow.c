/* A disk on which a file takes its name after four seconds, while the file of SLOW_DISK is there. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int rename(const char *from, const char *to) {
    static int (*real)(const char *, const char *);
    const char *slow = getenv("SLOW_DISK");
    const char *end = strrchr(to, '.');
    if (!real) real = (int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename");
    if (slow && end && !strcmp(end, ".ledger") && !access(slow, F_OK)) sleep(4);
    return real(from, to);
}
