/* A program that compiles: two functions of machine code made at run time, named in a perf map of its own, taking
 * turns by chance, two thirds and one third of the CPU. The map also says what is wrong or out of date, as maps do.
 * gcc -O2 -fomit-frame-pointer -o jit jit.c
 * Usage: jit SECONDS SEED; prints the CPU nanoseconds of both functions when done. */
#include "split.h"
#include <sys/mman.h>
#include <unistd.h>

/* push rbp; mov rbp, rsp; again: dec rdi; jnz again; pop rbp; ret */
static const uint8_t CODE[] = {0x55, 0x48, 0x89, 0xe5, 0x48, 0xff, 0xcf, 0x75, 0xfb, 0x5d, 0xc3};

typedef void (*compiled)(uint64_t rounds);

static compiled compile(uint8_t *at) {
    memcpy(at, CODE, sizeof CODE);
    return (compiled)(uintptr_t)at;
}
APART static void call(compiled function, uint64_t end_ns) {
    while (clock_ns(CLOCK_THREAD_CPUTIME_ID) < end_ns) function(100000);
    STAY;
}

int main(int count, char **arguments) {
    if (count != 3) return 2;
    random_state = strtoull(arguments[2], NULL, 10) | 1;
    uint8_t *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 1;
    compiled first = compile(memory), second = compile(memory + 64);
    char path[64];
    snprintf(path, sizeof path, "/tmp/perf-%d.map", (int)getpid());
    FILE *map = fopen(path, "w");
    if (!map) return 1;
    fprintf(map, "%lx 1000 freed_long_ago\n", (unsigned long)memory);
    fprintf(map, "%lx 100000 planted_over_the_program\n", (unsigned long)(uintptr_t)main & ~0xffffful);
    fprintf(map, "no entry at all\n%lx %lx compiled first\n", (unsigned long)memory, sizeof CODE);
    fprintf(map, "%lx %lx compiled_second\n", (unsigned long)(memory + 64), sizeof CODE);
    fclose(map);
    uint64_t end_ns = clock_ns(CLOCK_MONOTONIC) + strtoull(arguments[1], NULL, 10) * 1000000000u;
    uint64_t spent[2] = {0, 0};
    while (clock_ns(CLOCK_MONOTONIC) < end_ns) {
        int which = random_next() % 3 == 0;
        uint64_t before = clock_ns(CLOCK_THREAD_CPUTIME_ID);
        call(which ? second : first, before + (1 + random_next() % 5) * 1000000u);
        spent[which] += clock_ns(CLOCK_THREAD_CPUTIME_ID) - before;
    }
    unlink(path);
    printf("%llu %llu\n", (unsigned long long)spent[0], (unsigned long long)spent[1]);
    return 0;
}
