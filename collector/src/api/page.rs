//! Serves the page: four files that `cargo xtask ui` builds into `ui/dist`, embedded in the executable and
//! compressed once. With `VESTA_UI_DIR` they are read from that folder at every request instead (for work
//! on the page). Without the feature `ui` there is a line of text in its place.

use super::App;
use super::error::ApiError;
use super::guard::accepts_gzip;
use axum::Router;
use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use http::header::{self, HeaderMap, HeaderValue};
use http::{StatusCode, Uri};
use sha2::{Digest as _, Sha256};
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

/// A file of the page.
struct File {
    name: &'static str,
    content_type: &'static str,
    bytes: &'static [u8],
}

#[cfg(feature = "ui")]
const FILES: [File; 4] = [
    File {
        name: "index.html",
        content_type: "text/html; charset=utf-8",
        bytes: include_bytes!("../../ui/dist/index.html"),
    },
    File {
        name: "app.js",
        content_type: "text/javascript; charset=utf-8",
        bytes: include_bytes!("../../ui/dist/app.js"),
    },
    File {
        name: "app.css",
        content_type: "text/css; charset=utf-8",
        bytes: include_bytes!("../../ui/dist/app.css"),
    },
    File {
        name: "favicon.svg",
        content_type: "image/svg+xml",
        bytes: include_bytes!("../../ui/dist/favicon.svg"),
    },
];

#[cfg(not(feature = "ui"))]
const FILES: [File; 1] = [File {
    name: "index.html",
    content_type: "text/html; charset=utf-8",
    bytes:
        b"<!doctype html><title>Vesta</title><p>Built without the page; the API is at /api/v1.\n",
}];

/// A file as it is sent.
struct Asset {
    content_type: &'static str,
    etag: HeaderValue,
    plain: Bytes,
    gzip: Option<Bytes>,
}

impl Asset {
    fn new(content_type: &'static str, plain: Bytes) -> Self {
        let digest = Sha256::digest(&plain);
        let hex: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        let etag = HeaderValue::from_str(&format!("\"{hex}\""));
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        let gzip = encoder.write_all(&plain).and_then(|()| encoder.finish()).ok();
        Self {
            content_type,
            etag: etag.expect("hex in quotes is a header value"),
            gzip: gzip.filter(|gzip| gzip.len() < plain.len()).map(Bytes::from),
            plain,
        }
    }
}

/// In the order of [`FILES`].
static EMBEDDED: LazyLock<Vec<Arc<Asset>>> = LazyLock::new(|| {
    let asset = |file: &File| Asset::new(file.content_type, Bytes::from_static(file.bytes));
    FILES.iter().map(|file| Arc::new(asset(file))).collect()
});

static FOLDER: LazyLock<Option<PathBuf>> =
    LazyLock::new(|| std::env::var_os("VESTA_UI_DIR").map(PathBuf::from));

pub(super) fn router() -> Router<Arc<App>> {
    let mut router = Router::new();
    for (at, file) in FILES.iter().enumerate() {
        let answer = async move |uri: Uri, headers: HeaderMap| send(at, &uri, &headers).await;
        router = match file.name {
            // One page, whatever its path says it shows.
            "index.html" => router
                .route("/", get(answer))
                .route("/explore", get(answer))
                .route("/locks", get(answer)),
            name => router.route(&format!("/{name}"), get(answer)),
        };
    }
    router
}

async fn load(at: usize) -> Result<Arc<Asset>, ApiError> {
    let missing = || ApiError::new(StatusCode::NOT_FOUND, "not_found", "no such file of the page");
    let Some(folder) = &*FOLDER else { return EMBEDDED.get(at).cloned().ok_or_else(missing) };
    let file = FILES.get(at).ok_or_else(missing)?;
    match tokio::fs::read(folder.join(file.name)).await {
        Ok(bytes) => Ok(Arc::new(Asset::new(file.content_type, Bytes::from(bytes)))),
        Err(error) => Err(missing()
            .hint(format!("VESTA_UI_DIR is set, and {} cannot be read: {error}", file.name))),
    }
}

async fn send(at: usize, uri: &Uri, headers: &HeaderMap) -> Response {
    let asset = match load(at).await {
        Ok(asset) => asset,
        Err(error) => return error.into_response(),
    };
    let known = headers.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    let etag = asset.etag.to_str().unwrap_or_default();
    let is_known = known.is_some_and(|tags| tags.split(',').any(|tag| tag.trim() == etag));
    let gzip = asset.gzip.as_ref().filter(|_| accepts_gzip(headers));
    let mut response = match (is_known, gzip) {
        (true, _) => StatusCode::NOT_MODIFIED.into_response(),
        (false, Some(gzip)) => {
            let mut response = Response::new(Body::from(gzip.clone()));
            let coding = HeaderValue::from_static("gzip");
            response.headers_mut().insert(header::CONTENT_ENCODING, coding);
            response
        }
        (false, None) => Response::new(Body::from(asset.plain.clone())),
    };
    // `index.html` names the others with `?v=<hash>`: such an address never changes its contents.
    let is_versioned = uri.query().is_some_and(|query| query.starts_with("v=")) && FOLDER.is_none();
    let cache = if is_versioned { "public, max-age=31536000, immutable" } else { "no-cache" };
    let answer = response.headers_mut();
    answer.insert(header::CONTENT_TYPE, HeaderValue::from_static(asset.content_type));
    answer.insert(header::ETAG, asset.etag.clone());
    answer.insert(header::CACHE_CONTROL, HeaderValue::from_static(cache));
    answer.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    response
}

#[cfg(test)]
#[cfg(feature = "ui")]
mod tests {
    use super::*;
    use std::path::Path;

    fn collect(folder: &Path, below: &str, paths: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let path = format!("{below}/{}", entry.file_name().to_str().unwrap());
            if entry.file_type().unwrap().is_dir() {
                collect(&entry.path(), &path, paths);
            } else {
                paths.push(path);
            }
        }
    }

    /// `ui/build.mjs` describes the digest. It tells a stale `dist` without Node.
    #[test]
    fn the_embedded_page_was_built_from_the_sources_beside_it() {
        let ui = Path::new(env!("CARGO_MANIFEST_DIR")).join("ui");
        let mut paths = vec!["build.mjs".to_owned(), "package-lock.json".to_owned()];
        collect(&ui.join("src"), "src", &mut paths);
        paths.sort();
        let mut digest = Sha256::new();
        for path in &paths {
            let bytes = std::fs::read(ui.join(path)).unwrap();
            digest.update(format!("{path}\0{}\0", bytes.len()));
            digest.update(&bytes);
        }
        let hex: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        let built = std::fs::read_to_string(ui.join("dist/SOURCE_HASH")).unwrap();
        assert_eq!(built.trim(), hex, "ui/dist is stale: run `cargo xtask ui`");
    }

    #[test]
    fn the_page_names_its_files_by_their_contents() {
        let [index, files @ ..] = &FILES;
        let index = std::str::from_utf8(index.bytes).unwrap();
        for file in files.iter().filter(|file| file.name.starts_with("app.")) {
            let digest = Sha256::digest(file.bytes);
            let hex: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
            assert!(index.contains(&format!("/{}?v={hex}", file.name)), "{}", file.name);
        }
    }
}
