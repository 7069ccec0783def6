//! How far a recording is, on stderr: a line that moves on a terminal, one line elsewhere.

use agent::record::Recorder;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal as _;
use std::time::Duration;

/// The progress of one recording.
#[derive(Debug)]
pub(super) struct Progress {
    bar: Option<ProgressBar>,
    recorder: Recorder,
}

impl Progress {
    /// Says that sampling runs.
    pub(super) fn start(duration: Option<Duration>, recorder: Recorder) -> Self {
        let length = duration.map_or("until the command ends or Ctrl-C".to_owned(), |duration| {
            format!("for {} s", duration.as_secs_f64())
        });
        if !std::io::stderr().is_terminal() {
            crate::say(&format!("recording {length}"));
            return Self { bar: None, recorder };
        }
        let length_ms = duration.map(|duration| u64::try_from(duration.as_millis()).unwrap_or(0));
        let bar = match length_ms {
            Some(length_ms) => ProgressBar::new(length_ms),
            None => ProgressBar::no_length(),
        };
        bar.set_draw_target(ProgressDrawTarget::stderr());
        let template = match length_ms {
            Some(_) => "recording {wide_bar} {elapsed} {msg}",
            None => "recording {spinner} {elapsed} {msg}",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Self { bar: Some(bar), recorder }
    }

    /// Shows the state.
    pub(super) fn show(&self, elapsed: Duration) {
        let Some(bar) = &self.bar else { return };
        bar.set_position(u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX));
        bar.set_message(format!("{} samples", self.recorder.observations()));
    }

    /// Takes the line away.
    pub(super) fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
