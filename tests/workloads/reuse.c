/* One pid for many processes in turn: clone3 with set_tid (Linux 5.5) asks for it. The programs take turns.
 * gcc -O2 -o reuse reuse.c
 * Usage: reuse TURNS MICROSECONDS RELAY_A RELAY_B; prints the pid, then what each process printed. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* The child has this pid; EEXIST while somebody else has it. */
static pid_t clone_as(pid_t pid) {
    struct clone_args arguments = {
        .exit_signal = SIGCHLD, .set_tid = (uint64_t)(uintptr_t)&pid, .set_tid_size = 1};
    return (pid_t)syscall(SYS_clone3, &arguments, sizeof arguments);
}

int main(int count, char **arguments) {
    if (count != 5) return 2;
    /* A pid that was free a moment ago. */
    const pid_t pid = fork();
    if (pid == 0) _exit(0);
    waitpid(pid, NULL, 0);
    printf("%d\n", pid);
    fflush(stdout);
    const long turns = strtol(arguments[1], NULL, 10);
    for (long turn = 0; turn < turns; turn++) {
        char *program = arguments[3 + turn % 2];
        pid_t child = -1;
        for (int try = 0; try < 100 && (child = clone_as(pid)) < 0 && errno == EEXIST; try++) usleep(1000);
        if (child < 0) {
            perror("clone3");
            return 1;
        }
        if (child == 0) {
            execl(program, program, "0", arguments[2], "0", "0", program, (char *)NULL);
            _exit(127);
        }
        int status = 0;
        waitpid(child, &status, 0);
        if (status != 0) return 1;
    }
    return 0;
}
