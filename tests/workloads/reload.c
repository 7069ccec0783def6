/* Loads and unloads two libraries in turn, which come to lie at the same address.
 * gcc -O2 -fomit-frame-pointer -o reload reload.c
 * Usage: reload LOADS MICROSECONDS LIBRARY_A LIBRARY_B: works so long in each. Prints a line for each load: number of
 * the library, its address, Unix nanoseconds of load and unload, CPU nanoseconds in between. */
#include "split.h"

int main(int count, char **arguments) {
    if (count != 5) return 2;
    const long loads = strtol(arguments[1], NULL, 10);
    const uint64_t us = strtoull(arguments[2], NULL, 10);
    for (long load = 0; load < loads; load++) {
        const uint64_t start = clock_ns(CLOCK_REALTIME);
        void *library = dlopen(arguments[3 + load % 2], RTLD_NOW | RTLD_LOCAL);
        if (library == NULL) return 1;
        uint64_t (*work)(uint64_t) = (uint64_t (*)(uint64_t))dlsym(library, "work");
        Dl_info file = {0};
        if (work == NULL || dladdr((void *)work, &file) == 0) return 1;
        const uint64_t took = work(us);
        dlclose(library);
        printf("%ld %llu %llu %llu %llu\n", load % 2, (unsigned long long)(uintptr_t)file.dli_fbase,
               (unsigned long long)start, (unsigned long long)clock_ns(CLOCK_REALTIME), (unsigned long long)took);
    }
    return 0;
}
