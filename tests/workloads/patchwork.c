/* A process with as many executable mappings as asked for, none beside another of the same file, and its work in the
 * last of them.
 * gcc -O2 -fomit-frame-pointer -static -no-pie -o patchwork patchwork.c
 * Usage: patchwork MAPPINGS MILLISECONDS LIBRARY_A LIBRARY_B OFFSET LENGTH ADDRESS: the executable segment of the
 * libraries lies at OFFSET in the file and is LENGTH bytes, and the function `alone_a` or `alone_b` is ADDRESS bytes into
 * it. Maps until the process has MAPPINGS executable mappings, then calls that function in the last for so long. Prints number of
 * mappings, milliseconds that mapping took, CPU nanoseconds of the call. */
#include "split.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

static long executable_mappings(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[8192];
    long mappings = 0;
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
        const char *rights = strchr(line, ' ');
        /* The vsyscall page is the kernel's. */
        if (rights != NULL && rights[3] == 'x' && strstr(line, "[vsyscall]") == NULL) mappings++;
    }
    if (maps != NULL) fclose(maps);
    return mappings;
}

APART static uint64_t middle(uint64_t (*alone)(uint64_t), uint64_t end_ns) {
    uint64_t v = 0;
    while (clock_ns(CLOCK_THREAD_CPUTIME_ID) < end_ns) v += alone(100000);
    STAY;
    return v + 1;
}

int main(int count, char **arguments) {
    if (count != 8) return 2;
    const long wanted = strtol(arguments[1], NULL, 10) - executable_mappings();
    const int files[2] = {open(arguments[3], O_RDONLY), open(arguments[4], O_RDONLY)};
    const off_t offset = strtoll(arguments[5], NULL, 10);
    const size_t length = strtoull(arguments[6], NULL, 10);
    const uint64_t before = clock_ns(CLOCK_MONOTONIC);
    char *room = mmap(NULL, length * (size_t)wanted, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) return 1;
    char *last = room;
    for (long i = 0; i < wanted; i++) {
        last = room + (size_t)i * length;
        if (mmap(last, length, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, files[i % 2], offset) != last) return 1;
    }
    const uint64_t mapped = clock_ns(CLOCK_MONOTONIC);
    const long mappings = executable_mappings();
    uint64_t (*alone)(uint64_t) = (uint64_t (*)(uint64_t))(uintptr_t)(last + strtoull(arguments[7], NULL, 10));
    const uint64_t start = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    volatile uint64_t v = middle(alone, start + strtoull(arguments[2], NULL, 10) * 1000000u);
    (void)v;
    printf("%ld %llu %llu\n", mappings, (unsigned long long)((mapped - before) / 1000000),
           (unsigned long long)(clock_ns(CLOCK_THREAD_CPUTIME_ID) - start));
    return 0;
}
