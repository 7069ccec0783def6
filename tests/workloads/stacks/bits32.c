/* A 32-bit program without any library: gcc -m32 -nostdlib -static -fno-builtin. It spins like the others, one second that does not
 * count and MILLISECONDS that do, and prints only its clocks: of its stack the agent shows the leaf alone. */
typedef unsigned int u32;
typedef unsigned long long u64;

static int call(int number, long a, long b, long c) {
    int result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(number), "b"(a), "c"(b), "d"(c) : "memory");
    return result;
}

/* clock_gettime64, arch/x86/entry/syscalls/syscall_32.tbl; clocks 0: wall, 1: monotonic, 3: CPU of the thread. */
static u64 clock_ns(int clock) {
    struct { long long seconds, nanoseconds; } now = {0, 0};
    call(403, clock, (long)&now, 0);
    return (u64)now.seconds * 1000000000u + (u64)now.nanoseconds;
}

static void text(const char *words) {
    u32 length = 0;
    while (words[length] != 0) length++;
    call(4, 1, (long)words, (long)length);
}

static void number(u64 value) {
    char digits[24];
    int at = 23;
    digits[at] = 0;
    do {
        /* No 64-bit division without a library: nine digits at a time by the machine's own. */
        u32 high = (u32)(value >> 32), low = (u32)value, rest = high % 10, quotient;
        high /= 10;
        __asm__("divl %4" : "=a"(quotient), "=d"(rest) : "0"(low), "1"(rest), "r"(10u));
        value = (u64)high << 32 | quotient;
        digits[--at] = (char)('0' + rest);
    } while (value != 0);
    text(digits + at);
}

__attribute__((noinline)) static u32 spin(u32 value) {
    for (u32 i = 0; i < 1000000; i++) {
        value = value * 1664525u + i;
        __asm__ volatile("" : "+r"(value));
    }
    return value;
}

__attribute__((noinline)) static u32 inner(u64 budget_ns) {
    u32 value = 1;
    const u64 begun = clock_ns(1);
    while (clock_ns(1) < begun + 1000000000u) value += spin(value);
    const u64 from = clock_ns(0), cpu = clock_ns(3);
    while (clock_ns(3) - cpu < budget_ns) value += spin(value);
    text("{\"executable\":\"stacks-bits32\",\"late_cpu_ns\":");
    number(clock_ns(3) - cpu);
    text(",\"late_from_ns\":");
    number(from);
    text(",\"late_until_ns\":");
    number(clock_ns(0));
    text(",\"root\":{\"file\":\"\",\"address\":0},\"frames\":[]}\n");
    return value;
}

__attribute__((used, noinline)) static void run(char **arguments) {
    u32 milliseconds = 0;
    for (const char *digit = arguments[1]; *digit != 0; digit++) milliseconds = milliseconds * 10 + (u32)(*digit - '0');
    inner((u64)milliseconds * 1000000u);
    call(1, 0, 0, 0);
}

__asm__(".globl _start\n_start: leal 4(%esp), %eax\npushl %eax\ncall run\nhlt\n");
