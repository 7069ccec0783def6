/* Many short processes: each by vfork and exec, in turn over the programs, so many at a time, one each period.
 * gcc -O2 -o swarm swarm.c
 * Usage: swarm COUNT PERIOD_US PARALLEL PROGRAMS ARGUMENTS... -- PROGRAM...: the word `{}` among the arguments is the
 * program's own path. Prints a line for each process: pid, number of its program, CPU microseconds by the kernel's
 * account (wait4; it includes the way to exec and out of the process). */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHILDREN_MAX 32

struct child {
    pid_t pid;
    long program;
};

static struct child children[CHILDREN_MAX];
static int running;

static void reap_one(void) {
    struct rusage usage;
    const pid_t pid = wait4(-1, NULL, 0, &usage);
    for (int i = 0; i < running; i++) {
        if (children[i].pid != pid) continue;
        const long long us = (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000ll +
                             usage.ru_utime.tv_usec + usage.ru_stime.tv_usec;
        printf("%d %ld %lld\n", pid, children[i].program, us);
        children[i] = children[--running];
        return;
    }
}

int main(int count, char **arguments) {
    int first = 4;
    while (first < count && strcmp(arguments[first], "--") != 0) first++;
    if (first + 1 >= count) return 2;
    const long processes = strtol(arguments[1], NULL, 10), period_us = strtol(arguments[2], NULL, 10);
    const int parallel = (int)strtol(arguments[3], NULL, 10), programs = count - first - 1;
    if (parallel < 1 || parallel > CHILDREN_MAX) return 2;
    struct timespec due;
    clock_gettime(CLOCK_MONOTONIC, &due);
    const int nothing = open("/dev/null", O_WRONLY);
    for (long process = 0; process < processes; process++) {
        while (running >= parallel) reap_one();
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL);
        due.tv_nsec += period_us * 1000;
        due.tv_sec += due.tv_nsec / 1000000000;
        due.tv_nsec %= 1000000000;
        char *program = arguments[first + 1 + process % programs];
        char *own[16] = {program};
        for (int i = 4; i < first && i < 18; i++) {
            own[i - 3] = strcmp(arguments[i], "{}") == 0 ? program : arguments[i];
        }
        fflush(stdout);
        const pid_t pid = vfork();
        if (pid == 0) {
            dup2(nothing, 1);
            execv(program, own);
            _exit(127);
        }
        if (pid < 0) return 1;
        children[running++] = (struct child){pid, process % programs};
    }
    while (running > 0) reap_one();
    return 0;
}
