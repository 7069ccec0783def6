// Most of its time is in the kernel, below `fill`. Runs until it is killed.
#include <fcntl.h>
#include <unistd.h>

static char buffer[1 << 20];

static __attribute__((noinline, noclone)) long fill(int fd) {
    return read(fd, buffer, sizeof buffer) + 1;
}

int main(void) {
    int fd = open("/dev/zero", O_RDONLY);
    long total = 0;
    for (;;)
        total += fill(fd);
}
