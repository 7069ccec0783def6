//! The part that `run` and `record` share: the engine on a thread of its own, names on another.

use agent::address::Pid;
use agent::aggregate::{NameSources, NamingPatience, NamingThread, WindowWriter, start_naming};
use agent::bpf::{FormChoice, WaitStacks};
use agent::elf::LocalFiles;
use agent::engine::{self, Control, EngineError, EngineOptions, LibcProbing};
use agent::options::{Form, LockProbes, SamplingOptions};
use agent::symbolize::kernel::{KernelRegions, KernelSymbols};
use agent::symbolize::perf_maps::PerfMaps;
use anyhow::{Context as _, anyhow};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread::JoinHandle;
use std::time::Duration;

/// What is sampled.
#[derive(Debug, Default)]
pub(crate) struct Scope {
    /// These processes; all if empty.
    pub(crate) pids: Vec<Pid>,
    /// The time that threads spend off their CPU too.
    pub(crate) off_cpu: bool,
    /// Of how many waits the stack is taken.
    pub(crate) wait_stacks: WaitStacks,
    /// For so long; until stopped if `None`.
    pub(crate) duration: Option<Duration>,
    /// Executables that will run soon.
    pub(crate) preload: Vec<PathBuf>,
    /// How long names may take.
    pub(crate) patience: NamingPatience,
}

/// An engine that runs.
#[derive(Debug)]
pub(crate) struct Sampling {
    pub(crate) control: Control,
    /// See [`LocalFiles::debug_info_put_off`].
    pub(crate) debug_info_put_off: Arc<AtomicU64>,
    engine: JoinHandle<Result<(), EngineError>>,
    naming: NamingThread,
}

/// Starts the engine; its windows are named and go to `writer`. `ended` is called when it returns, for
/// whatever reason.
pub(crate) fn start(
    options: &SamplingOptions,
    scope: Scope,
    writer: Box<dyn WindowWriter>,
    ended: impl FnOnce() + Send + 'static,
) -> anyhow::Result<Sampling> {
    let SamplingOptions {
        frequency_hz,
        form,
        ring_bytes,
        bpf_log,
        allow_kernel,
        lock_probes,
        unwind_table_bytes,
        ref unwind_table_cache,
    } = *options;
    let Scope { pids, off_cpu, wait_stacks, duration, preload, patience } = scope;
    let defaults = EngineOptions::default();
    let mut options = EngineOptions {
        frequency_hz,
        pids,
        off_cpu,
        wait_stacks,
        go_lock_probes: lock_probes != LockProbes::Off,
        libc_lock_probes: match lock_probes {
            LockProbes::Off | LockProbes::Go => LibcProbing::Never,
            LockProbes::Waiting => LibcProbing::Always,
            LockProbes::Auto => LibcProbing::WhereLinked,
        },
        duration,
        preload,
        ring_bytes,
        bpf_log,
        table_bytes_max: unwind_table_bytes,
        table_cache: Some(unwind_table_cache.clone()).filter(|path| *path != *"off"),
        ignore_kernel_defects: allow_kernel,
        form: match form {
            Form::Auto => FormChoice::Auto,
            Form::BpfLoop => FormChoice::BpfLoop,
            Form::TailCalls => FormChoice::TailCalls,
        },
        ..defaults
    };
    let perf_maps = PerfMaps::start(options.proc_root.clone()).context("starting a thread")?;
    let perf_maps = Arc::new(perf_maps);
    options.perf_maps = Some(Arc::clone(&perf_maps));
    let kernel_regions = Arc::new(KernelRegions::default());
    options.kernel_regions = Some(Arc::clone(&kernel_regions));
    let files = LocalFiles::new();
    let debug_info_put_off = files.debug_info_put_off();
    let sources = NameSources {
        files: Arc::new(files),
        kernel: Box::new(KernelSymbols::read(&options.proc_root, Arc::clone(&kernel_regions))),
        perf_maps: Some(perf_maps),
        patience,
    };
    let (sink, naming) = start_naming(sources, writer).context("starting a thread")?;
    let control = Control::default();
    let mut sink = sink.stopping(control.clone());
    let engine = {
        let control = control.clone();
        std::thread::Builder::new().name("engine".to_owned()).spawn(move || {
            let done = engine::run(&options, &mut sink, &control);
            drop(sink);
            ended();
            done
        })
    };
    let engine = engine.context("starting a thread")?;
    Ok(Sampling { control, debug_info_put_off, engine, naming })
}

impl Sampling {
    /// True once the engine has returned.
    pub(crate) fn is_over(&self) -> bool {
        self.engine.is_finished()
    }

    /// Stops the engine and waits until its last window is written.
    pub(crate) fn finish(self) -> anyhow::Result<()> {
        self.control.stop();
        let done = self.engine.join().map_err(|_panic| anyhow!("the engine panicked"))?;
        drop(self.naming.join().map_err(|_panic| anyhow!("naming panicked"))?);
        done.map_err(Into::into)
    }
}
