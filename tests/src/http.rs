//! The smallest HTTP client: one request, one connection. HTTP/1.0, so that the answer ends with the
//! connection.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long a request may take.
const TIMEOUT: Duration = Duration::from_secs(60);

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// The status line and the headers as sent.
    pub head: String,
    /// The body.
    pub body: Vec<u8>,
}

impl Response {
    /// The body as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// Asks for a path.
///
/// # Errors
/// If no answer comes.
pub fn get(address: SocketAddr, path: &str) -> std::io::Result<Response> {
    request(address, "GET", path, &[], &[])
}

/// Sends one request.
///
/// # Errors
/// If the connection fails, or the answer is not HTTP.
pub fn request(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> std::io::Result<Response> {
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let mut head = format!("{method} {path} HTTP/1.0\r\nContent-Length: {}\r\n", body.len());
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        head += &format!("Host: {address}\r\n");
    }
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    stream.write_all((head + "\r\n").as_bytes())?;
    // A server that refuses a large body early closes its side: its answer is still there to read.
    let sent = stream.write_all(body);
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    let Some(split) = answer.windows(4).position(|window| window == b"\r\n\r\n") else {
        sent?;
        read?;
        return Err(std::io::Error::other("the answer has no head"));
    };
    let head = String::from_utf8_lossy(&answer[..split]).into_owned();
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    let status = status.ok_or_else(|| std::io::Error::other(format!("not HTTP: {head}")))?;
    // In its place: an answer may have tens of megabytes.
    answer.drain(..split + 4);
    Ok(Response { status, head, body: answer })
}

/// Percent-encodes a query value.
#[must_use]
pub fn encode(value: &str) -> String {
    let byte = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
            (byte as char).to_string()
        }
        other => format!("%{other:02X}"),
    };
    value.bytes().map(byte).collect()
}
