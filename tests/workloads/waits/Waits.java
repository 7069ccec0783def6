// One thread waits, another lets it go: monitors of the JVM, and what must not be taken for one. See waits.c for the
// method. Usage: java -cp DIR Waits CASE MILLISECONDS; prints one line of JSON.
import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.ReentrantLock;

public final class Waits {
    private static final long HELD_MS = 50;
    private static final long FREE_MS = 1;
    /** Whoever watches has read by then what runs. */
    private static final long BEFORE_MS = 500;
    private static final Object MONITOR = new Object();
    private static final ReentrantLock LOCK = new ReentrantLock();
    private static final AtomicLong WAITED_NS = new AtomicLong();
    private static final AtomicLong WAITS = new AtomicLong();
    private static volatile boolean stop;

    interface Step {
        void run() throws InterruptedException;
    }

    record Way(Step turn, Step await) {}

    private static void count(long before) {
        long took = System.nanoTime() - before;
        if (took > 1_000_000) {
            WAITED_NS.addAndGet(took);
            WAITS.incrementAndGet();
        }
    }

    private static void holdMonitor() throws InterruptedException {
        synchronized (MONITOR) {
            Thread.sleep(HELD_MS);
        }
        Thread.sleep(FREE_MS);
    }

    private static void enterMonitor() {
        long before = System.nanoTime();
        synchronized (MONITOR) {
            count(before);
        }
    }

    private static void notifyIt() throws InterruptedException {
        Thread.sleep(HELD_MS + FREE_MS);
        synchronized (MONITOR) {
            MONITOR.notify();
        }
    }

    private static void waitForIt() throws InterruptedException {
        synchronized (MONITOR) {
            long before = System.nanoTime();
            MONITOR.wait();
            count(before);
        }
    }

    /** The one that notifies keeps the monitor for 50 ms more. */
    private static void notifyAndHold() throws InterruptedException {
        synchronized (MONITOR) {
            MONITOR.notify();
            Thread.sleep(HELD_MS);
        }
        Thread.sleep(FREE_MS);
    }

    private static void holdLock() throws InterruptedException {
        LOCK.lock();
        Thread.sleep(HELD_MS);
        LOCK.unlock();
        Thread.sleep(FREE_MS);
    }

    private static void takeLock() {
        long before = System.nanoTime();
        LOCK.lock();
        count(before);
        LOCK.unlock();
    }

    private static void sleepIt() throws InterruptedException {
        long before = System.nanoTime();
        Thread.sleep(HELD_MS);
        count(before);
    }

    private static final Map<String, Way> WAYS = Map.of(
        "monitor", new Way(Waits::holdMonitor, Waits::enterMonitor),
        "wait", new Way(Waits::notifyIt, Waits::waitForIt),
        "reenter", new Way(Waits::notifyAndHold, Waits::waitForIt),
        "park", new Way(Waits::holdLock, Waits::takeLock),
        "sleep", new Way(Waits::sleepIt, Waits::sleepIt));

    private static Thread start(String name, Step step) {
        Thread thread = new Thread(() -> {
            try {
                while (!stop) {
                    step.run();
                    if (name.equals("waiter")) {
                        Thread.sleep(0, 200_000);
                    }
                }
            } catch (InterruptedException ended) {
                Thread.currentThread().interrupt();
            }
        }, name);
        thread.setDaemon(true);
        thread.start();
        return thread;
    }

    public static void main(String[] arguments) throws Exception {
        Way way = WAYS.get(arguments[0]);
        Thread.sleep(BEFORE_MS);
        start("holder", way.turn());
        start("waiter", way.await());
        Thread.sleep(Long.parseLong(arguments[1]));
        stop = true;
        Thread.sleep(2 * (HELD_MS + FREE_MS));
        System.out.printf("{\"case\":\"%s\",\"pid\":%d,\"tid\":0,\"waited_ns\":%d,\"waits\":%d,\"lock\":0,\"beside\":0}%n",
            arguments[0], ProcessHandle.current().pid(), WAITED_NS.get(), WAITS.get());
        System.exit(0);
    }
}
