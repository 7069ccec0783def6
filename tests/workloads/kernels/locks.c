// Three threads that want one mutex: system calls, switches between threads, and stacks that begin in the C
// library's own assembly. Runs until it is killed.
#include <pthread.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static volatile unsigned long sink;

static __attribute__((noinline, noclone)) void contend(void) {
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < 2000; i++)
        sink += i;
    pthread_mutex_unlock(&mutex);
}

static void *thread(void *unused) {
    for (;;)
        contend();
    return unused;
}

int main(void) {
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        pthread_create(&threads[i], 0, thread, 0);
    pthread_join(threads[0], 0);
}
