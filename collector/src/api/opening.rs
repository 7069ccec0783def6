//! A connection whose first bytes must come in time: enough of them to tell HTTP/1.1 from HTTP/2. It knows
//! nothing of what follows.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// What every HTTP/2 client sends first (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A stream that fails if it does not open in time.
pub(super) struct Opening<S> {
    stream: S,
    /// Bytes read so far that are those of [`PREFACE`].
    matched: usize,
    /// Absent once the version is known.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<S> Opening<S> {
    /// The first bytes must be there after `time`.
    pub(super) fn new(stream: S, time: Duration) -> Self {
        Self { stream, matched: 0, deadline: Some(Box::pin(tokio::time::sleep(time))) }
    }

    /// Looks at what was read; the deadline is off where it ends the preface or differs from it.
    fn saw(&mut self, bytes: &[u8]) {
        let expected = PREFACE.get(self.matched..).unwrap_or_default();
        self.matched += bytes.len();
        if bytes.len() >= expected.len() || !expected.starts_with(bytes) {
            self.deadline = None;
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Opening<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if let Some(deadline) = &mut this.deadline
            && deadline.as_mut().poll(context).is_ready()
        {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(context, buffer))?;
        if this.deadline.is_some() {
            this.saw(buffer.filled().get(before..).unwrap_or_default());
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Opening<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    /// What a client sends at once, and whether the connection lives after the time for it.
    #[tokio::test(start_paused = true)]
    async fn only_an_open_connection_outlives_the_deadline() {
        let rows: [(&[u8], bool); 6] = [
            (b"", false),
            (b"P", false),
            (b"PRI * HTTP/2.0\r\n", false),
            (PREFACE, true),
            (b"POST", true),
            (b"GET / HTTP/1.0\r\n\r\n", true),
        ];
        for (sent, lives) in rows {
            let (mut client, server) = tokio::io::duplex(64);
            let mut opening = Opening::new(server, Duration::from_secs(30));
            client.write_all(sent).await.unwrap();
            let mut read = vec![0; sent.len()];
            opening.read_exact(&mut read).await.unwrap();
            let later = tokio::time::timeout(Duration::from_secs(31), opening.read_u8()).await;
            let ended = matches!(later, Ok(Err(error)) if error.kind() == io::ErrorKind::TimedOut);
            assert_eq!(!ended, lives, "{}", String::from_utf8_lossy(sent));
        }
    }
}
