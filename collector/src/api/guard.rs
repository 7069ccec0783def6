//! What every request of the main port passes: an id, the check of Host and Origin, the security headers,
//! the body of an error, compression, the counting.
//!
//! Host: a page of another site can point its own name at 127.0.0.1 after it was loaded (DNS rebinding)
//! and would then be of the same origin; only the Host header still tells. Names that are allowed: those
//! of the loopback, the very address that the connection came in on (an address cannot be rebound),
//! and what `--allowed-host` adds.

use super::App;
use super::error::ApiError;
use crate::limits::COMPRESS_BYTES_MIN;
use axum::body::{Body, HttpBody as _, to_bytes};
use axum::extract::{MatchedPath, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use flate2::{Compression, write::GzEncoder};
use http::header::{self, HeaderName};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// The address of this host that a connection came in on; set by [`super::listen`].
#[derive(Clone, Copy, Debug)]
pub struct LocalAddress(pub SocketAddr);

/// The address of the peer of a connection; set by [`super::listen`].
#[derive(Clone, Copy, Debug)]
pub struct PeerAddress(pub SocketAddr);

/// Everything comes from this origin, nothing is inlined, nothing may frame the page.
pub const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
     img-src 'self' data: blob:; connect-src 'self'; font-src 'self'; base-uri 'none'; \
     form-action 'self'; frame-ancestors 'none'; require-trusted-types-for 'script'";

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Bytes of a request id that is taken over from the client.
const REQUEST_ID_BYTES_MAX: usize = 64;

/// The outermost layer of the main port.
pub(super) async fn guard(
    State(app): State<Arc<App>>,
    path: Option<MatchedPath>,
    request: Request<Body>,
    next: Next,
) -> Response {
    let started = Instant::now();
    let id = request_id(request.headers());
    let route = route_name(path.as_ref());
    let accepts_gzip = accepts_gzip(request.headers());
    let refusal = check_host(&app, &request).and_then(|()| check_origin(&request));
    let mut response = match refusal {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    };
    if let Some(error) = response.extensions_mut().remove::<ApiError>() {
        response = error_body(&error, &id, response);
    }
    app.metrics.http_request(route, response.status().as_u16(), started.elapsed());
    let headers = response.headers_mut();
    if let Ok(id) = HeaderValue::from_str(&id) {
        headers.insert(REQUEST_ID, id);
    }
    for (name, value) in SECURITY_HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    if accepts_gzip { compress(response).await } else { response }
}

const SECURITY_HEADERS: [(HeaderName, &str); 6] = [
    (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    // Links hold label values.
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("permissions-policy"), ""),
];

/// Routes as metric labels: a fixed set.
fn route_name(path: Option<&MatchedPath>) -> &'static str {
    let path = path.map_or("", MatchedPath::as_str);
    super::ROUTES.iter().find(|route| **route == path).copied().unwrap_or("other")
}

fn request_id(headers: &HeaderMap) -> String {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let given = headers.get(&REQUEST_ID).and_then(|value| value.to_str().ok());
    let is_plain = |id: &&str| {
        (1..=REQUEST_ID_BYTES_MAX).contains(&id.len())
            && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
    };
    if let Some(id) = given.filter(is_plain) {
        return id.to_owned();
    }
    // Unique within a process; the clock keeps processes apart. It is no secret.
    let now_ms = crate::ingest::receiver::now_ms();
    format!("{now_ms:x}-{:x}", COUNTER.fetch_add(1, Ordering::Relaxed))
}

/// Name or address of a `host[:port]`, without the port and brackets.
fn host_of(authority: &str) -> Option<&str> {
    if let Some(rest) = authority.strip_prefix('[') {
        let (host, port) = rest.split_once(']')?;
        return (port.is_empty() || port.starts_with(':')).then_some(host);
    }
    match authority.split_once(':') {
        Some((_, port)) if port.contains(':') => None,
        Some((host, _)) => Some(host),
        None => Some(authority),
    }
}

fn authority(request: &Request<Body>) -> Option<&str> {
    let of_header = || request.headers().get(header::HOST)?.to_str().ok();
    request.uri().authority().map(http::uri::Authority::as_str).or_else(of_header)
}

fn is_allowed(app: &App, request: &Request<Body>, host: &str) -> bool {
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    if host == "localhost" || app.allowed_hosts.contains(&host) {
        return true;
    }
    let Ok(address) = host.parse::<IpAddr>() else { return false };
    let local = request.extensions().get::<LocalAddress>().map(|local| local.0.ip().to_canonical());
    let is_loopback_name = address == IpAddr::from([127, 0, 0, 1])
        || address == IpAddr::V6(std::net::Ipv6Addr::LOCALHOST);
    is_loopback_name || local == Some(address.to_canonical())
}

fn check_host(app: &App, request: &Request<Body>) -> Result<(), ApiError> {
    let Some(authority) = authority(request) else {
        return Err(ApiError::new(StatusCode::BAD_REQUEST, "host", "the Host header is missing"));
    };
    if host_of(authority).is_some_and(|host| is_allowed(app, request, host)) {
        return Ok(());
    }
    let shown: String = authority.chars().take(100).collect();
    Err(ApiError::new(
        StatusCode::MISDIRECTED_REQUEST,
        "host",
        format!("this collector is not known as `{shown}`"),
    )
    .hint("use http://localhost or its address, or start it with --allowed-host NAME"))
}

/// Requests that a page of another origin makes are refused; a link from elsewhere may open the page.
fn check_origin(request: &Request<Body>) -> Result<(), ApiError> {
    let refused = |what: &str| {
        Err(ApiError::new(
            StatusCode::FORBIDDEN,
            "origin",
            format!("requests of {what} are refused"),
        )
        .hint("open the page itself, or ask the API without a browser"))
    };
    let headers = request.headers();
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let own = authority(request).unwrap_or_default();
    if let Some(origin) = text("origin") {
        let of_origin = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        if !of_origin.is_some_and(|it| it.eq_ignore_ascii_case(own)) {
            return refused("another origin");
        }
    }
    match text("sec-fetch-site") {
        None | Some("same-origin" | "none") => Ok(()),
        Some(_)
            if request.method() == Method::GET
                && text("sec-fetch-mode") == Some("navigate")
                && text("sec-fetch-dest") == Some("document")
                && !request.uri().path().starts_with("/api/") =>
        {
            Ok(())
        }
        Some(_) => refused("another site"),
    }
}

fn error_body(error: &ApiError, id: &str, response: Response) -> Response {
    let ApiError { status, code, message, hint } = error;
    let body = serde_json::json!({"error": {
        "code": code, "message": message, "hint": hint, "request_id": id,
    }});
    let (mut parts, _) = response.into_parts();
    parts.status = *status;
    parts.headers.remove(header::CONTENT_LENGTH);
    parts.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if *status == StatusCode::SERVICE_UNAVAILABLE {
        parts.headers.insert(header::RETRY_AFTER, HeaderValue::from_static("5"));
    }
    Response::from_parts(parts, Body::from(body.to_string()))
}

/// True if the client takes gzip: named with a weight above zero.
pub(super) fn accepts_gzip(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|it| it.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|item| {
        let mut parts = item.split(';').map(str::trim);
        let named = parts.next().is_some_and(|name| name.eq_ignore_ascii_case("gzip"));
        let refused = parts.any(|part| {
            part.strip_prefix("q=")
                .is_some_and(|weight| weight.parse::<f32>().is_ok_and(|q| q <= 0.0))
        });
        named && !refused
    })
}

/// Compresses a body that is in memory and worth it: one whose size is known.
async fn compress(response: Response) -> Response {
    let (mut parts, body) = response.into_parts();
    // A body of several texts does not know its size; who made it says so.
    let stated = || parts.headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok();
    let exact = body.size_hint().exact().or_else(stated);
    let exact = exact.and_then(|size: u64| usize::try_from(size).ok());
    let text = parts.headers.get(header::CONTENT_TYPE).and_then(|it| it.to_str().ok());
    let is_text =
        text.is_some_and(|it| it.starts_with("application/json") || it.starts_with("text/"));
    let coded = parts.headers.contains_key(header::CONTENT_ENCODING);
    let Some(size) = exact.filter(|&size| size >= COMPRESS_BYTES_MIN && is_text && !coded) else {
        return Response::from_parts(parts, body);
    };
    let Ok(plain) = to_bytes(body, size).await else {
        return ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "no body")
            .into_response();
    };
    let original = plain.clone();
    // Level 1: 4 MB of a flame graph in 20 ms, and 3 times smaller.
    let task = tokio::task::spawn_blocking(move || {
        let mut encoder = GzEncoder::new(Vec::with_capacity(size / 3), Compression::fast());
        encoder.write_all(&plain)?;
        encoder.finish()
    });
    let body = match task.await {
        Ok(Ok(small)) => {
            parts.headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            parts.headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
            parts.headers.remove(header::CONTENT_LENGTH);
            Body::from(small)
        }
        _ => Body::from(original),
    };
    Response::from_parts(parts, body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts() {
        let rows = [
            ("localhost", Some("localhost")),
            ("localhost:4040", Some("localhost")),
            ("127.0.0.1:80", Some("127.0.0.1")),
            ("[::1]:4040", Some("::1")),
            ("[::1]", Some("::1")),
            ("[::1]x", None),
            ("[::1", None),
            ("::1", None),
            ("a:b:c", None),
            ("", Some("")),
        ];
        for (authority, host) in rows {
            assert_eq!(host_of(authority), host, "{authority}");
        }
    }

    #[test]
    fn gzip_is_negotiated() {
        let rows = [
            ("gzip", true),
            ("br, gzip;q=0.5", true),
            ("GZIP", true),
            ("gzip;q=0", false),
            ("gzip; q=0.0", false),
            ("identity", false),
            ("", false),
        ];
        for (value, expected) in rows {
            let headers = [(header::ACCEPT_ENCODING, HeaderValue::from_static(value))];
            assert_eq!(accepts_gzip(&headers.into_iter().collect()), expected, "{value}");
        }
    }
}
