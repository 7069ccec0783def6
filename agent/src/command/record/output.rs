//! The file of a recording: opened before anything is sampled, so that a wrong path costs no recording.

use agent::aggregate::NamedWindow;
use agent::export::otlp::{Encoder, EncoderSettings, HostIdentity};
use agent::options::Format;
use agent::record::{Contents, write_folded, write_pprof};
use anyhow::Context as _;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// Where a recording goes.
#[derive(Debug)]
pub(super) enum Output {
    Stdout,
    File {
        file: File,
        path: PathBuf,
        /// The file was not there before: it goes again if nothing is written.
        new: bool,
    },
}

impl Output {
    /// Opens the file without touching what is in it.
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        if path == Path::new("-") {
            return Ok(Self::Stdout);
        }
        let new = !path.exists();
        let file = File::options().write(true).create(true).truncate(false).open(path);
        let file = file.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self::File { file, path: path.to_owned(), new })
    }

    /// Writes the recording; answers where it is.
    pub(super) fn write(
        mut self,
        window: &NamedWindow,
        format: (Format, Contents),
        host_name: Option<String>,
    ) -> anyhow::Result<String> {
        match &mut self {
            Self::Stdout => {
                let mut stdout = std::io::stdout().lock();
                match write_as(window, format, host_name, &mut stdout) {
                    Ok(()) => Ok("to stdout".to_owned()),
                    Err(error) if is_broken_pipe(&error) => {
                        Ok("to a reader that had enough".to_owned()) // `| head`
                    }
                    Err(error) => Err(error).context("writing to stdout"),
                }
            }
            Self::File { file, path, new } => {
                let context = || format!("cannot write {}", path.display());
                if file.metadata().with_context(context)?.is_file() {
                    file.set_len(0).with_context(context)?;
                }
                write_as(window, format, host_name, file).with_context(context)?;
                *new = false;
                Ok(path.display().to_string())
            }
        }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if let Self::File { path, new: true, .. } = self {
            drop(std::fs::remove_file(path));
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let cause = error.downcast_ref::<std::io::Error>();
    cause.is_some_and(|cause| cause.kind() == std::io::ErrorKind::BrokenPipe)
}

fn write_as(
    window: &NamedWindow,
    (format, contents): (Format, Contents),
    host_name: Option<String>,
    output: &mut impl Write,
) -> anyhow::Result<()> {
    let mut output = BufWriter::new(output);
    match format {
        Format::Pprof => write_pprof(window, contents, &mut output)?,
        Format::Folded => write_folded(window, contents, &mut output)?,
        Format::Otlp => {
            // One message for the whole file: two would not join, each has its own dictionary.
            let host = HostIdentity::read(host_name);
            let settings =
                EncoderSettings { host, source_lines: true, request_bytes_max: usize::MAX };
            for request in Encoder::new(settings)?.encode(window) {
                output.write_all(&request.bytes)?;
            }
        }
    }
    output.flush()?;
    Ok(())
}
