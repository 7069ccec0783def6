//! One thread waits, another lets it go: each way to wait in Rust's standard library and in `parking_lot`, one at a
//! time. See waits.c for the method.
//!
//! Usage: waits CASE MILLISECONDS; prints one line of JSON.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "its output is its purpose")]
#![expect(clippy::unwrap_used, reason = "a workload ends where it fails")]

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, LazyLock, Mutex, Once, RwLock, mpsc};
use std::thread::{Thread, park, sleep, spawn};
use std::time::{Duration, Instant};

const HELD: Duration = Duration::from_millis(50);
const FREE: Duration = Duration::from_millis(1);
/// Whoever watches has read by then what runs.
const BEFORE: Duration = Duration::from_millis(250);
/// What took less was no wait.
const WAIT_MIN: Duration = Duration::from_millis(1);

static STOP: AtomicBool = AtomicBool::new(false);
static WAITED_NS: AtomicU64 = AtomicU64::new(0);
static WAITS: AtomicU64 = AtomicU64::new(0);

static MUTEX: Mutex<u64> = Mutex::new(0);
static RWLOCK: RwLock<u64> = RwLock::new(0);
static CONDVAR: Condvar = Condvar::new();
static PL_MUTEX: parking_lot::Mutex<u64> = parking_lot::Mutex::new(0);
static PL_RWLOCK: parking_lot::RwLock<u64> = parking_lot::RwLock::new(0);
static PL_CONDVAR: parking_lot::Condvar = parking_lot::Condvar::new();
static WAITER: Mutex<Option<Thread>> = Mutex::new(None);
static ONCES: LazyLock<Vec<Once>> = LazyLock::new(|| (0..100_000).map(|_| Once::new()).collect());
static PL_ONCES: LazyLock<Vec<parking_lot::Once>> =
    LazyLock::new(|| (0..100_000).map(|_| parking_lot::Once::new()).collect());

/// What the other thread does for a turn, and what the waiter does.
struct Way {
    name: &'static str,
    turn: fn(usize),
    wait: fn(usize),
    lock: fn() -> usize,
}

fn address<T>(of: &T) -> usize {
    std::ptr::from_ref(of).addr()
}

fn none() -> usize {
    0
}

fn hold<T>(guard: T) {
    sleep(HELD);
    drop(guard);
    sleep(FREE);
}

/// Time around a call, if it waited.
#[inline(never)]
fn timed<T>(wait: impl FnOnce() -> T) -> T {
    let before = Instant::now();
    let got = black_box(wait());
    let took = before.elapsed();
    if took > WAIT_MIN {
        WAITED_NS.fetch_add(u64::try_from(took.as_nanos()).unwrap(), Ordering::Relaxed);
        WAITS.fetch_add(1, Ordering::Relaxed);
    }
    got
}

fn pause() {
    sleep(HELD + FREE);
}

static CHANNEL: LazyLock<(mpsc::Sender<u8>, Mutex<mpsc::Receiver<u8>>)> = LazyLock::new(|| {
    let (sender, receiver) = mpsc::channel();
    (sender, Mutex::new(receiver))
});

const WAYS: [Way; 13] = [
    Way {
        name: "mutex",
        turn: |_| hold(MUTEX.lock().unwrap()),
        wait: |_| drop(timed(|| MUTEX.lock().unwrap())),
        lock: || address(&MUTEX),
    },
    Way {
        name: "read",
        turn: |_| hold(RWLOCK.write().unwrap()),
        wait: |_| drop(timed(|| RWLOCK.read().unwrap())),
        lock: || address(&RWLOCK),
    },
    Way {
        name: "write",
        turn: |_| hold(RWLOCK.read().unwrap()),
        wait: |_| drop(timed(|| RWLOCK.write().unwrap())),
        lock: || address(&RWLOCK),
    },
    Way {
        name: "condvar",
        turn: |_| {
            pause();
            let _guard = MUTEX.lock().unwrap();
            CONDVAR.notify_one();
        },
        wait: |_| {
            let guard = MUTEX.lock().unwrap();
            drop(timed(|| CONDVAR.wait(guard).unwrap()));
        },
        lock: none,
    },
    Way {
        name: "once",
        turn: |turn| {
            ONCES[turn].call_once(|| sleep(HELD));
            sleep(FREE);
        },
        // If it comes first after all it runs what is to be run: that is no wait.
        wait: |turn| timed(|| ONCES[turn].call_once(|| ())),
        lock: none,
    },
    Way {
        name: "park",
        turn: |_| {
            pause();
            if let Some(waiter) = WAITER.lock().unwrap().as_ref() {
                waiter.unpark();
            }
        },
        wait: |_| timed(park),
        lock: none,
    },
    Way {
        name: "channel",
        turn: |_| {
            pause();
            CHANNEL.0.send(1).unwrap();
        },
        wait: |_| {
            let receiver = CHANNEL.1.lock().unwrap();
            black_box(timed(|| receiver.recv().unwrap()));
        },
        lock: none,
    },
    Way {
        name: "parking_lot_mutex",
        turn: |_| hold(PL_MUTEX.lock()),
        wait: |_| drop(timed(|| PL_MUTEX.lock())),
        lock: none,
    },
    Way {
        name: "parking_lot_read",
        turn: |_| hold(PL_RWLOCK.write()),
        wait: |_| drop(timed(|| PL_RWLOCK.read())),
        lock: none,
    },
    Way {
        name: "parking_lot_write",
        turn: |_| hold(PL_RWLOCK.write()),
        wait: |_| drop(timed(|| PL_RWLOCK.write())),
        lock: none,
    },
    Way {
        name: "parking_lot_write_readers",
        turn: |_| hold(PL_RWLOCK.read()),
        wait: |_| drop(timed(|| PL_RWLOCK.write())),
        lock: none,
    },
    Way {
        name: "parking_lot_condvar",
        turn: |_| {
            pause();
            let _guard = PL_MUTEX.lock();
            PL_CONDVAR.notify_one();
        },
        wait: |_| {
            let mut guard = PL_MUTEX.lock();
            timed(|| PL_CONDVAR.wait(&mut guard));
        },
        lock: none,
    },
    Way {
        name: "parking_lot_once",
        turn: |turn| {
            PL_ONCES[turn].call_once(|| sleep(HELD));
            sleep(FREE);
        },
        // If it comes first after all it runs what is to be run: that is no wait.
        wait: |turn| timed(|| PL_ONCES[turn].call_once(|| ())),
        lock: none,
    },
];

static TURN: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let way = arguments.get(1).and_then(|name| WAYS.iter().find(|way| way.name == *name));
    let milliseconds = arguments.get(2).and_then(|number| number.parse().ok());
    let (Some(way), Some(milliseconds)) = (way, milliseconds) else {
        eprintln!("usage: waits CASE MILLISECONDS");
        std::process::exit(2);
    };
    sleep(BEFORE);
    spawn(|| {
        while !STOP.load(Ordering::Relaxed) {
            (way.turn)(TURN.fetch_add(1, Ordering::Relaxed) + 1);
        }
    });
    let (tell, told) = mpsc::channel();
    let waiter = std::thread::Builder::new().name("waiter".to_owned()).spawn(move || {
        tell.send(std::fs::read_link("/proc/thread-self").unwrap()).unwrap();
        *WAITER.lock().unwrap() = Some(std::thread::current());
        while !STOP.load(Ordering::Relaxed) {
            sleep(FREE / 2);
            (way.wait)(TURN.load(Ordering::Relaxed));
        }
    });
    let tid = told.recv().unwrap();
    let tid = tid.file_name().unwrap().to_string_lossy();
    sleep(Duration::from_millis(milliseconds));
    STOP.store(true, Ordering::Relaxed);
    sleep(2 * (HELD + FREE));
    drop(waiter);
    println!(
        r#"{{"case":"{}","pid":{},"tid":{tid},"waited_ns":{},"waits":{},"lock":{},"beside":0}}"#,
        way.name,
        std::process::id(),
        WAITED_NS.load(Ordering::Relaxed),
        WAITS.load(Ordering::Relaxed),
        (way.lock)(),
    );
    std::process::exit(0);
}
