/* Many sleeping processes.
 * gcc -O2 -o crowd crowd.c
 * Usage: crowd PROCESSES PROGRAM: starts so many, says `ready MILLISECONDS`, sleeps until it is ended; they end with it. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static long long now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000ll + now.tv_nsec / 1000000;
}

int main(int count, char **arguments) {
    if (count != 3) return 2;
    const long processes = strtol(arguments[1], NULL, 10);
    const long long start = now_ms();
    for (long i = 0; i < processes; i++) {
        const pid_t pid = vfork();
        if (pid == 0) {
            execl(arguments[2], arguments[2], (char *)NULL);
            _exit(127);
        }
        if (pid < 0) return 1;
    }
    printf("ready %lld\n", now_ms() - start);
    fflush(stdout);
    pause();
    return 0;
}
