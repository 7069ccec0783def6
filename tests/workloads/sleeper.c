/* The smallest process: one page of code, no library, sleeps until it is killed or its parent ends.
 * gcc -O2 -static -nostdlib -no-pie -Wl,--build-id -o sleeper sleeper.c */
__attribute__((naked)) void _start(void) {
    __asm__("mov $157, %eax\n\t" /* prctl(PR_SET_PDEATHSIG, SIGKILL) */
            "mov $1, %edi\n\t"
            "mov $9, %esi\n\t"
            "syscall\n"
            "1: mov $34, %eax\n\t" /* pause() */
            "syscall\n\t"
            "jmp 1b");
}
