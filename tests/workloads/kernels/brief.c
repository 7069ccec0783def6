// Lives for 300 ms of its own CPU time; with an argument, not even that.
#include <time.h>

static volatile unsigned long sink;

static __attribute__((noinline, noclone)) void live(void) {
    struct timespec now;
    do {
        for (int i = 0; i < 1000; i++)
            sink += i;
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    } while (now.tv_sec == 0 && now.tv_nsec < 300000000);
}

int main(int argc, char **argv) {
    (void)argv;
    if (argc == 1)
        live();
    return 0;
}
