/* What the C and the C++ workload share: the clock, the phases, the truth they print.
 *
 * Three chains take turns in phases of 1 to 5 ms of thread CPU time, chosen at random, so that no sampling
 * frequency can walk in step with them: 50 % `a`, 30 % `b`, 20 % `c`. The truth is read from the thread's CPU
 * clock around each phase, not assumed: what a phase really took is what is printed. */
#ifndef SPLIT_H
#define SPLIT_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unwind.h>

#define APART __attribute__((noinline, noclone))
/* Keeps a call from becoming a jump: the caller still has something to do behind it. */
#define STAY __asm__ volatile("" ::: "memory")

static uint64_t clock_ns(clockid_t id) {
    struct timespec now;
    clock_gettime(id, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t random_state;

/* xorshift64: the seed is printed, so a run can be repeated. */
static uint64_t random_next(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

struct root {
    const void *address;
    int frames;
};

static _Unwind_Reason_Code root_frame(struct _Unwind_Context *context, void *data) {
    struct root *root = (struct root *)data;
    const void *address = (const void *)_Unwind_GetIP(context);
    if (address != NULL) {
        root->address = address;
        root->frames++;
    }
    return _URC_NO_REASON;
}

/* Where the compiler's own unwinder says that this thread's stack ends: file and ELF address. */
static void print_root(void) {
    struct root root = {NULL, 0};
    Dl_info file = {0};
    _Unwind_Backtrace(root_frame, &root);
    const char *name = "";
    if (root.address != NULL && dladdr(root.address, &file) != 0 && file.dli_fname != NULL) {
        name = strrchr(file.dli_fname, '/');
        name = name == NULL ? file.dli_fname : name + 1;
    }
    printf("\"root\":{\"file\":\"%s\",\"address\":%llu}", name,
           (unsigned long long)((uintptr_t)root.address - (uintptr_t)file.dli_fbase));
}

struct truth {
    uint64_t chain_ns[3];
    uint64_t late_ns; /* CPU time after the first second */
};

/* The phases; `run` runs one chain for about so many iterations. */
static void split(uint64_t seconds, uint64_t seed, uint64_t (*run[3])(uint64_t), struct truth *truth) {
    random_state = seed * 2654435761u + 88172645463325252u;
    uint64_t per_ms = 1000000;
    const uint64_t start = clock_ns(CLOCK_MONOTONIC);
    const uint64_t end = start + seconds * 1000000000u;
    volatile uint64_t sink = 0;
    for (;;) {
        const uint64_t now = clock_ns(CLOCK_MONOTONIC);
        if (now >= end) break;
        const uint64_t draw = random_next() % 10;
        const int chain = draw < 5 ? 0 : draw < 8 ? 1 : 2;
        const uint64_t iterations = per_ms * (100 + random_next() % 400) / 100;
        const uint64_t before = clock_ns(CLOCK_THREAD_CPUTIME_ID);
        sink += run[chain](iterations);
        const uint64_t took = clock_ns(CLOCK_THREAD_CPUTIME_ID) - before;
        truth->chain_ns[chain] += took;
        if (now >= start + 1000000000u) truth->late_ns += took;
        /* The first phases find out how fast this machine is. */
        if (took > 0 && now < start + 100000000u) per_ms = iterations * 1000000u / took + 1;
    }
}

static void print_truth(const char *language, uint64_t seed, const struct truth *truth) {
    printf("{\"language\":\"%s\",\"seed\":%llu,\"chains\":{\"a\":%llu,\"b\":%llu,\"c\":%llu},\"late_ns\":%llu,",
           language, (unsigned long long)seed, (unsigned long long)truth->chain_ns[0],
           (unsigned long long)truth->chain_ns[1], (unsigned long long)truth->chain_ns[2],
           (unsigned long long)truth->late_ns);
}

/* One step of work without a call and without a system call. */
static inline __attribute__((always_inline)) uint64_t churn(uint64_t value, uint64_t iterations) {
    for (uint64_t i = 0; i < iterations; i++) {
        value = value * 6364136223846793005u + i;
        __asm__ volatile("" : "+r"(value));
    }
    return value;
}
#endif
