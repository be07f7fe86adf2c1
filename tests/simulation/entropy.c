/* Random numbers of a process that a seed decides: a program that asks the C library for random bytes gets those that follow from
 * ENTROPY. */
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

static _Atomic uint64_t drawn;

/* splitmix64, by Steele, Lea and Flood (2014) */
static uint64_t draw(void) {
    static _Atomic uint64_t seed;
    if (!atomic_load(&seed)) {
        const char *text = getenv("ENTROPY");
        atomic_store(&seed, (text ? strtoull(text, NULL, 10) : 0) * 2 + 1);
    }
    uint64_t mixed = atomic_load(&seed) + atomic_fetch_add(&drawn, 1) * UINT64_C(0x9e3779b97f4a7c15);
    mixed = (mixed ^ (mixed >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    mixed = (mixed ^ (mixed >> 27)) * UINT64_C(0x94d049bb133111eb);
    return mixed ^ (mixed >> 31);
}

ssize_t getrandom(void *to, size_t length, unsigned flags) {
    (void)flags;
    for (size_t at = 0; at < length; at += 8) {
        uint64_t bytes = draw();
        memcpy((char *)to + at, &bytes, length - at < 8 ? length - at : 8);
    }
    return (ssize_t)length;
}

int getentropy(void *to, size_t length) {
    getrandom(to, length, 0);
    return 0;
}
