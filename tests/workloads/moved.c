/* Two libraries of one layout take turns at one address, and no record says so of the process that runs there.
 * gcc -O2 -fomit-frame-pointer -static -no-pie -o moved moved.c
 * Usage: moved WAY ROUNDS MILLISECONDS LIBRARY_A LIBRARY_B OFFSET LENGTH ADDRESS, the last three as of patchwork.c. WAY is
 * `mremap` (the page of the other library is moved there), `vfork` (a child of vfork maps it) or `shared` (a process that
 * shares its parent's memory runs there, and the parent maps). Prints the pid of the process that runs there, then for
 * each round the number of the library and Unix nanoseconds of its begin and its end. */
#include "split.h"
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static int files[2];
static off_t offset;
static size_t length;
static char *place;
static uint64_t (*alone)(uint64_t);

static void *map(char *at, long library) {
    const int fixed = at != NULL ? MAP_FIXED : 0;
    return mmap(at, length, PROT_READ | PROT_EXEC, MAP_PRIVATE | fixed, files[library], offset);
}

static int by_mremap(long library) {
    void *other = map(NULL, library);
    return other == MAP_FAILED || mremap(other, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, place) != place;
}

static int by_vfork(long library) {
    int status = 1;
    const pid_t pid = vfork();
    if (pid == 0) _exit(map(place, library) != place);
    return pid < 0 || waitpid(pid, &status, 0) != pid || status != 0;
}

static int by_parent(long library) { return map(place, library) != place; }

APART static uint64_t middle(uint64_t end_ns) {
    uint64_t v = 0;
    while (clock_ns(CLOCK_REALTIME) < end_ns) v += alone(100000);
    STAY;
    return v + 1;
}

/* Uses nothing that its parent uses. */
static int run_there(void *unused) {
    (void)unused;
    volatile uint64_t v = 0;
    for (;;) v += alone(100000);
}

int main(int count, char **arguments) {
    if (count != 9) return 2;
    const int shared = strcmp(arguments[1], "shared") == 0;
    int (*replace)(long) = shared ? by_parent : strcmp(arguments[1], "vfork") == 0 ? by_vfork : by_mremap;
    const long rounds = strtol(arguments[2], NULL, 10);
    const uint64_t round_ns = strtoull(arguments[3], NULL, 10) * 1000000u;
    for (int i = 0; i < 2; i++) files[i] = open(arguments[4 + i], O_RDONLY);
    offset = strtoll(arguments[6], NULL, 10);
    length = strtoull(arguments[7], NULL, 10);
    place = map(NULL, 0);
    if (place == MAP_FAILED) return 1;
    alone = (uint64_t (*)(uint64_t))(uintptr_t)(place + strtoull(arguments[8], NULL, 10));
    pid_t runner = getpid();
    if (shared) {
        static char stack[1 << 16] __attribute__((aligned(16)));
        runner = clone(run_there, stack + sizeof stack, CLONE_VM | SIGCHLD, NULL);
        if (runner < 0) return 1;
    }
    printf("%d\n", runner);
    for (long round = 0; round < rounds; round++) {
        if (round > 0 && replace(round % 2) != 0) return 1;
        const uint64_t start = clock_ns(CLOCK_REALTIME);
        const struct timespec pause = {(time_t)(round_ns / 1000000000u), (long)(round_ns % 1000000000u)};
        if (shared) {
            nanosleep(&pause, NULL);
        } else {
            volatile uint64_t v = middle(start + round_ns);
            (void)v;
        }
        printf("%ld %llu %llu\n", round % 2, (unsigned long long)start, (unsigned long long)clock_ns(CLOCK_REALTIME));
    }
    if (shared) {
        kill(runner, SIGKILL);
        waitpid(runner, NULL, 0);
    }
    return 0;
}
